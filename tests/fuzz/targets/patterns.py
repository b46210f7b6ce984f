"""Short texts that name things, and texts of SQL: patterns of tables, values, arrays, cron, subjects, topics, times.

A pattern is a line; the other lines of an input are names that it is held against. However it is made, that takes no time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pgsluice.console.executor.ticks import advanced, check_cron
from pgsluice.console.inspect.shown import parse_key, parse_place
from pgsluice.console.subscriptions.subscribing import parse_since
from pgsluice.replicator.source.relation_catalog import _Snapshot
from pgsluice.replicator.source.tables import parse_pattern
from pgsluice.rules.value_text import (
    array_elements,
    clock_key,
    date_key,
    interval_key,
    network_key,
    time_keys,
    timestamp_key,
)
from pgsluice.shared.config.kinds import parse_duration, parse_list, parse_lsn_text, parse_number, parse_pairs, parse_size
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.pipelines.run_requests import RunRequests
from pgsluice.shared.pipelines.run_schedule import RunSchedule
from pgsluice.shared.wire.names import GroupNames, check_worker_name
from pgsluice.shared.wire.table import NamePattern, TablePattern
from pgsluice.worker.sinks.kafka.topic_pattern import KeyPattern, TopicPattern
from pgsluice.worker.sinks.nats.subject_pattern import SubjectPattern
from pgsluice.worker.sinks.search.index_name import Generation
from pgsluice.worker.sinks.webhook.request import decode_secrets
from tests.fuzz.target import is_same, read

_LONGEST_NAME = 63
_NOW = datetime(2026, 1, 31, 9, 15, tzinfo=UTC)


def feed(data: bytes) -> None:
    _sql(data)
    try:
        text, *names = data.decode().split("\n")
    except UnicodeDecodeError:
        return
    _names(text, [name[:_LONGEST_NAME] for name in names])
    _options(text)
    _values(text)
    _schedule(text)


def _sql(data: bytes) -> None:
    elements = read(lambda: array_elements(data), ValueError)
    if elements is not None:
        is_same(elements, array_elements(_array(elements)))
    read(lambda: time_keys(data.split(b"\n")), ValueError)


def _array(elements: Sequence[bytes | None]) -> bytes:
    """Returns the array as a server writes one."""
    quoted = (b"NULL" if each is None else b'"%b"' % re.sub(rb'(["\\])', rb"\\\1", each) for each in elements)
    return b"{%b}" % b",".join(quoted)


def _names(text: str, names: Sequence[str]) -> None:
    pattern = read(lambda: TablePattern.parse(text), ValueError)
    read(lambda: parse_pattern(text, "public"), UsageError)
    for each in (NamePattern(text), *([] if pattern is None else [pattern.name])):
        _ = each.like, str(each)
        for name in (*names, text[:_LONGEST_NAME]):
            each.matches(name)
    if pattern is not None:
        assert pattern.within("public").schema is not None
        pattern.matches("public", text)
    is_same(NamePattern.exact(text).name, text)
    read(lambda: GroupNames(text), UsageError)
    read(lambda: check_worker_name(text), UsageError)
    generation = Generation.named(text)
    if generation is not None:
        is_same(generation.alias, text.rpartition("-")[0])


def _options(text: str) -> None:
    read(lambda: TopicPattern.parse(text), UsageError)
    read(lambda: KeyPattern.parse(text), UsageError)
    read(lambda: SubjectPattern.parse(text, "SHOP"), UsageError)
    read(lambda: decode_secrets(text), UsageError)
    read(lambda: parse_place(text), UsageError)
    read(lambda: parse_since(text), UsageError)
    read(lambda: parse_key(text.split()), UsageError)
    for parse in (parse_number, parse_size, parse_pairs, parse_lsn_text):
        read(lambda parse=parse: parse(text), ValueError)  # type: ignore[misc]
    seconds = read(lambda: parse_duration(text), ValueError)
    assert seconds is None or seconds < float("inf")
    parse_list(text)


def _values(text: str) -> None:
    for parse in (date_key, clock_key, interval_key, network_key):
        read(lambda parse=parse: parse(text), ValueError)  # type: ignore[misc]
    for zone in (True, False):
        read(lambda zone=zone: timestamp_key(text, zone=zone), ValueError)  # type: ignore[misc]
    read(lambda: _Snapshot.parse(text), ValueError, TerminalError)


def _schedule(text: str) -> None:
    """Counts, for a schedule that is taken, the ticks that were missed in a day."""
    try:
        check_cron(text)
    except ValueError:
        return
    schedule = RunSchedule(cron=" ".join(text.split()), time_zone="Europe/Berlin")
    known = advanced(RunRequests(), schedule, _NOW)
    assert known.ticks.next > _NOW.isoformat()
    advanced(known, schedule, _NOW + timedelta(days=1))


def seeds() -> Iterator[bytes]:
    for text in (
        "orders\npublic",
        'shop.*\n"odd.name"',
        '"a""b".order_*\norder_1',
        "*a*b*c\nabcabc",
        "{1,NULL,3}",
        '[0:1]={{"a,b","c\\"d"},{x\\ y,z}}',
        "2024-02-29 12:00:00.5+00\n0044-03-15 BC\ninfinity",
        "2024-02-29T12:00:00+01:00",
        "1 year 2 mons -3 days 04:05:06.789",
        "12:30:00",
        "10.0.0.0/8",
        "16/B374D848",
        "*/15 * * * *",
        "0 3 1-7,15 jan-mar mon#1",
        "0 0 L * *",
        "1h30m",
        "10GiB",
        '{"a": 1, "b": true}',
        "shop.{schema}.{table}.{operation}",
        "{schema}/{table}/{key}",
        "shop.orders-000007",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "id=7 name=x",
        "785:790:786,788",
    ):
        yield text.encode()

"""Rules and routes, which are bound to a table of many types, and the rules of a subscription, whose author is not trusted."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.ruleset import NO_RULES
from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import load_routing
from pgsluice.shared.config.yaml_nodes import check_plain
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Column, ReplicaIdentity, Table
from pgsluice.worker.sinks.subscriptions.subscription_rules import DEEPEST, read_rules
from tests.fuzz.target import read
from tests.fuzz.yaml_texts import examples, text_of

_TYPES = {
    "boolean": 16,
    "bigint": 20,
    "text": 25,
    "double precision": 701,
    "inet": 869,
    "text[]": 1009,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp with time zone": 1184,
    "interval": 1186,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
"""Types by oid. A column is called by the first word."""
_COLUMNS = [
    Column(name.split()[0], oid, name, -1, False, 1 if oid == 20 else None, oid == 20, "", "", number)
    for number, (name, oid) in enumerate(_TYPES.items(), start=1)
]
_TABLE = Table(16385, "public", "users", ReplicaIdentity.DEFAULT, tuple(_COLUMNS))


def feed(data: bytes) -> None:
    text = text_of(data)
    if text is None:
        return
    read(lambda: check_plain(text, "rules", DEEPEST), UsageError)
    read(lambda: read_rules(text), UsageError)
    rules = read(lambda: load_rules("rules.yaml", text), UsageError)
    routing = read(lambda: load_routing("routing.yaml", text), UsageError)
    if rules is not None:
        rules.ruleset().check([_TABLE])
    if routing is not None:
        transformation = Transformation(NO_RULES if rules is None else rules.ruleset(), routing)
        transformation.problems([_TABLE])


def seeds() -> Iterator[bytes]:
    """Examples, and a filter of each type."""
    yield from examples("tables:", "destination_table", "destination_schema")
    for column, value in {
        "boolean": "true",
        "bigint": "18",
        "double": "1e3",
        "inet": "10.0.0.0/8",
        "date": "2024-02-29",
        "time": "12:30:00",
        "timestamp": "2024-02-29T12:00:00Z",
        "interval": "1 day 02:30:00",
        "numeric": "0.10",
        "uuid": "00000000-0000-0000-0000-000000000001",
    }.items():
        condition = f"{{operator: gte, value: '{value}'}}"
        yield f"tables:\n  users:\n    - {{type: filter, column: {column}, parameters: {condition}}}".encode()
    yield b'%YAML 1.1\n---\ntables: {users: [{type: filter, column: "a\\u00e9\\x41\\U0001f600", parameters: &p {value: 1}}, *p]}'
    yield b"tables:\n  '*.u*r*':\n    - {type: transform, column: t*, parameters: {type: regex, pattern: '[0-9]+', replace: X}}"

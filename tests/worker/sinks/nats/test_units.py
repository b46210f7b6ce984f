"""Units of whole transactions, whether a task cut them or the driver."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.worker.sinks.nats import unit_cutter, whole_transactions
from pgsluice.worker.sinks.nats.atomic_unit import Unit, frame
from pgsluice.worker.sinks.nats.outgoing import Ends, MessageSection, Outgoing
from pgsluice.worker.sinks.nats.unit_cutter import UnitCutter
from pgsluice.worker.sinks.nats.whole_transactions import UNIT_BYTES, UNIT_MESSAGES, WholeTransactions, decode_blocks

HEADERS = b"Pgsluice-Chunk:1/2\r\n"


def messages(number: int, count: int, first: int = 0, data: bytes = b"{}", headers: bytes = b"") -> MessageSection:
    section = MessageSection()
    for index in range(first, first + count):
        section.add(b"SHOP.public.orders.insert", b"0/%X:%d" % (number, index + 1), data, Ends.CHANGE, headers)
    return section


def frames_of(unit: Unit) -> list[bytes]:
    """Of a unit that follows message 7: one by one, as the server takes them apart."""
    stream, frames = b"".join([*unit.opening(7), unit.closing(7, b"", b"")]), []
    begin = 0
    while begin < len(stream):
        data = stream.index(b"\r\n", begin) + 2
        end = data + int(stream[begin:data].split()[-1]) + 2
        assert stream[end - 2 : end] == b"\r\n"
        frames.append(stream[begin:end])
        begin = end
    return frames


@pytest.mark.parametrize("count", [1, 2, 3, 11, 1000, 1203])
@pytest.mark.parametrize("headers", [b"", HEADERS])
def test_a_unit_is_sent_as_if_each_message_was_framed_for_itself(count: int, headers: bytes) -> None:
    section = messages(5, count, headers=headers)
    made = Unit.of(section)
    unit = pickle.loads(pickle.dumps(made))
    expected = []
    for number in range(1, count + 1):
        more = b"Nats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n" % (made.batch_id, number)
        more += b"Nats-Expected-Last-Sequence:7\r\n" * (number == 1) + b"Nats-Batch-Commit:1\r\n" * (number == count)
        expected.append(frame(section.message(number - 1), more))
    assert [sorted(each.split(b"\r\n")) for each in frames_of(unit)] == [sorted(each.split(b"\r\n")) for each in expected]
    assert frames_of(unit) == frames_of(made)
    assert unit.last[:4] == section.message(-1)[:4]


def taken(tasks: Sequence[Sequence[tuple[MessageSection, bool, bool]]], part: int = 0) -> list[list[Outgoing]]:
    """What is sent at once, of the shares of transactions that tasks have."""
    cutter, units = UnitCutter(part), list[Unit]()
    for shares in tasks:
        whole = WholeTransactions()
        pieces = [piece for section, begins, ends in shares for piece in whole.add(section, begins=begins, ends=ends)]
        for block in decode_blocks(b"".join([*pieces, *whole.rest()])):
            units += cutter.cut(block)
    return [[sent(each) for each in frames_of(unit)] for unit in (*units, *cutter.rest())]


def sent(text: bytes) -> Outgoing:
    first, _, rest = text.partition(b"\r\n")
    head, _, data = rest.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")[1:]
    parts = [line for line in lines if line.startswith(b"Pgsluice-Part:")]
    return Outgoing(first.split()[1], lines[0].partition(b":")[2], b"".join(parts), data[:-2], Ends.CHANGE)


@st.composite
def shares(draw: st.DrawFn) -> tuple[list[int], list[list[tuple[MessageSection, bool, bool]]]]:
    """Sizes of transactions, and how tasks share them. A transaction may end in a share without a change."""
    sizes = draw(st.lists(st.integers(0, 1500) | st.integers(1, 3), min_size=1, max_size=8))
    tasks: list[list[tuple[MessageSection, bool, bool]]] = [[]]
    for number, size in enumerate(sizes, 1):
        borders = sorted(draw(st.sets(st.integers(0, size), max_size=3)) - {0}) or [size]
        borders += [] if borders[-1] == size and draw(st.booleans()) else [size]
        first = 0
        for border in borders:
            tasks[-1].append((messages(number, border - first, first), False, False))
            first = border
            if draw(st.booleans()):
                tasks.append([])
        _mark_ends(tasks, len(borders))
    return sizes, tasks


def _mark_ends(tasks: list[list[tuple[MessageSection, bool, bool]]], count: int) -> None:
    """Of the newest transaction, which has ``count`` shares."""
    places = [(task, share) for task, held in enumerate(tasks) for share in range(len(held))][-count:]
    for number, (task, share) in enumerate(places):
        tasks[task][share] = (tasks[task][share][0], number == 0, number == count - 1)


@given(shares())
def test_transactions_that_fit_into_a_unit_are_whole_in_one_and_larger_ones_say_their_parts(
    drawn: tuple[list[int], list[list[tuple[MessageSection, bool, bool]]]],
) -> None:
    sizes, tasks = drawn
    units = taken(tasks)
    ids = [message.message_id for unit in units for message in unit]
    assert ids == [b"0/%X:%d" % (number, index) for number, size in enumerate(sizes, 1) for index in range(1, size + 1)]
    for number, size in enumerate(sizes, 1):
        held = [message for unit in units for message in unit if message.message_id.startswith(b"0/%X:" % number)]
        if size > UNIT_MESSAGES:
            told = list(dict.fromkeys(message.headers.partition(b":")[2] for message in held))
            assert told == [b"%d" % part for part in range(1, len(told))] + [b"%d/%d" % (len(told), len(told))]
        elif size:
            assert {message.headers for message in held} == {b""}
            assert sum(set(held) <= set(unit) for unit in units) == 1
    assert all(len(unit) <= UNIT_MESSAGES for unit in units)


def test_a_task_leaves_to_the_driver_what_began_before_it_or_ends_behind_it_and_nothing_else() -> None:
    whole = WholeTransactions()
    shares = [(messages(1, 3), False, True), (messages(2, 1000), True, True), (messages(3, 5), True, True)]
    shares += [(messages(4, 1001), True, True), (messages(5, 5), True, False)]
    pieces = [piece for section, begins, ends in shares for piece in whole.add(section, begins=begins, ends=ends)]
    blocks = list(decode_blocks(b"".join([*pieces, *whole.rest()])))
    told = [each.count if isinstance(each, Unit) else (len(each.messages), each.begins) for each in blocks]
    assert told == [(3, False), 1000, 5, (1001, True), (5, True)]


def test_small_transactions_fill_units_together() -> None:
    whole = [(messages(number, 300), True, True) for number in range(1, 11)]
    assert [len(unit) for unit in taken([whole])] == [900, 900, 900, 300]


def test_units_are_bounded_in_bytes() -> None:
    whole = [(messages(number, 5, data=b"x" * (UNIT_BYTES // 10)), True, True) for number in range(1, 4)]
    assert [len(unit) for unit in taken([whole])] == [10, 5]


def test_larger_transactions_are_units_by_themselves_up_to_a_limit_and_cut_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a hundredth, which cut in the same places."""
    for module, name in ((whole_transactions, "UNIT_BYTES"), (unit_cutter, "UNIT_BYTES"), (unit_cutter, "LARGEST_UNIT_BYTES")):
        monkeypatch.setattr(module, name, getattr(module, name) // 100)
    tenth = b"x" * (whole_transactions.UNIT_BYTES // 10)
    large = [(messages(number, 11, data=tenth), True, True) for number in (1, 2)]
    assert [(len(unit), unit[0].headers) for unit in taken([large])] == [(11, b""), (11, b"")]
    larger = [(messages(1, 90, data=tenth), True, True), (messages(2, 1), True, True)]
    cut = [(40, b"Pgsluice-Part:1"), (40, b"Pgsluice-Part:2"), (10, b"Pgsluice-Part:3/3"), (1, b"")]
    assert [(len(unit), unit[0].headers) for unit in taken([larger])] == cut


def test_a_transaction_goes_on_with_the_next_part_after_a_restart() -> None:
    rest = [(messages(1, 500, first=2000), False, True), (messages(2, 3), True, True)]
    units = taken([rest], part=2)
    assert [(len(unit), unit[0].headers) for unit in units] == [(500, b"Pgsluice-Part:3/3"), (3, b"")]


def test_a_transaction_that_ended_without_another_message_leaves_the_next_one_unmarked() -> None:
    """Two parts of it are published, and its end came alone."""
    rest = [(MessageSection(), False, True), (messages(2, 1200), True, True)]
    units = taken([rest], part=2)
    assert [unit[0].headers for unit in units] == [b"Pgsluice-Part:1", b"Pgsluice-Part:2/2"]

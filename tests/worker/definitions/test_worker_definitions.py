"""A worker's definitions in its driver: who is asked, what is held, and what is noted; with a real broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from nats.aio.client import Client

from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.broker.definition_log import DefinitionOutcome, load_outcomes
from pgsluice.shared.definitions.definition_decisions import accept, load_held
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.wire.definition import DefinitionUnknown, TableDefined, TableDefinition, TableGone, TableRewritten
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.testing.changes_builder import insert, message, table
from pgsluice.worker.batches.ownership import Copy, Ownership
from pgsluice.worker.definitions import worker_definitions
from pgsluice.worker.definitions.arrivals import Arrival, arrivals_of, given_in_place
from pgsluice.worker.definitions.worker_definitions import WorkerDefinitions
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.sink import Delivery, Lane, Receipt, Sink
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, with_columns
from tests.worker.sinks.settings import worker_settings
from tests.worker.sinks.sqlite_sink import SqliteSink, SqliteTables

T = TypeVar("T")
AT = Position(LSN(0x5000), 3)
MORE = column(3, "more")
WIDER = with_columns(ID, NOTE, MORE)
RULES = "tables:\n  t:\n    - {type: transform, column: note, parameters: {type: mask, mask_char: '*'}}\n"


class UnawareSink:
    """Knows nothing of definitions."""

    delivery = Delivery.COLLECTED

    def __getattr__(self, name: str) -> Any:
        if name in ("open", "writer", "commit", "finish_copy", "close"):
            return lambda *_: None
        raise AttributeError(name)


def arrival(now: TableDefinition = WIDER, was: TableDefinition | None = TABLE, at: Position = AT) -> Arrival:
    return Arrival(7, at, 1_000_000, PublishedDefinition(TableDefined("ALTER TABLE", now), was))


REWRITTEN = replace(arrival(), definition=PublishedDefinition(TableRewritten("ALTER TABLE", TABLE.oid, "public", "t", 4), TABLE))
UNKNOWN = replace(arrival(), definition=PublishedDefinition(DefinitionUnknown("ALTER TABLE", "XX000"), None))


@dataclass
class Broker:
    """A group's bucket, and workers of one name, each of which is a process that was just started."""

    loop: EventLoopThread
    client: Client
    group: str
    path: Path

    @property
    def bucket(self) -> StateBucket:
        return StateBucket(self.client, GroupNames(self.group))

    def start(self, sink: Sink | None = None, rules: str = "", **settings: Any) -> WorkerDefinitions:
        changed = replace(worker_settings(self.group, name="w"), **settings)
        sink = sink or SqliteTables(changed, {"path": str(self.path / "x.db")})
        started = WorkerDefinitions(self.loop, self.bucket, changed, sink)
        file = self.path / "rules.yaml"
        file.write_text(rules)
        self.transformation = started.begin(load_transformation(str(file), "") if rules else Transformation())
        return started

    def outcomes(self) -> dict[Position, tuple[DefinitionOutcome, ...]]:
        return {at: noted.outcomes for at, noted in self.ask(lambda bucket: load_outcomes(bucket, "w")).items()}

    def accept(self, *positions: Position) -> None:
        self.ask(lambda bucket: accept(bucket, positions, "", "2026-01-31T09:15:00+00:00"))

    def ask(self, question: Callable[[StateBucket], Coroutine[Any, Any, T]]) -> T:
        return self.loop.run(question(self.bucket))


@pytest.fixture
def broker(nats_server: NatsServer, group: str, tmp_path: Path) -> Iterator[Broker]:
    ensure_bucket(nats_server.settings(), group)
    loop = EventLoopThread("test-definitions")
    client = loop.run(connect(nats_server.settings(), "test"))
    yield Broker(loop, client, group, tmp_path)
    loop.run(disconnect(client))
    loop.close()


def test_what_became_of_a_definition_is_noted_when_its_batch_is_applied(broker: Broker) -> None:
    worker = broker.start(ddl_policy={"drop-column": "keep", "drop-table": "keep"})
    gone = PublishedDefinition(TableGone("DROP TABLE", TABLE.oid, "public", "t"), WIDER)
    dropped = with_columns(ID, column(4, "other"))
    met = [
        arrival(at=Position(LSN(1), 1)),
        arrival(dropped, WIDER, Position(LSN(2), 1)),
        replace(arrival(at=Position(LSN(3), 1)), definition=gone),
        replace(REWRITTEN, position=Position(LSN(4), 1), is_copied=True),
    ]
    for _ in range(2):
        worker.judge(met)
        assert broker.outcomes() == {}
    worker.settle()
    assert list(broker.outcomes().values()) == [
        (DefinitionOutcome.APPLIED,),
        (DefinitionOutcome.KEPT, DefinitionOutcome.APPLIED),
        (DefinitionOutcome.KEPT,),
        (DefinitionOutcome.RECOPIED,),
    ]
    worker.settle()
    successor = broker.start()
    successor.judge([arrival()])
    successor.settle()
    assert len(broker.outcomes()) == 5


@pytest.mark.parametrize("stopping", [REWRITTEN, UNKNOWN])
def test_a_definition_that_needs_a_person_stops_the_worker_until_it_is_accepted(broker: Broker, stopping: Arrival) -> None:
    for _ in range(2):
        with pytest.raises(TerminalError, match=r"'pgsluice ddl accept 0/5000:3'"):
            broker.start().judge([stopping])
        assert broker.outcomes() == {AT: (DefinitionOutcome.STOPPED,)}
    broker.accept(AT)
    worker = broker.start()
    worker.judge([stopping, arrival(at=Position(LSN(0x5000), 4))])
    worker.settle()
    assert broker.outcomes() == {AT: (DefinitionOutcome.ACCEPTED,), Position(LSN(0x5000), 4): (DefinitionOutcome.APPLIED,)}


def test_what_is_accepted_while_a_worker_runs_holds_when_it_comes_there(broker: Broker) -> None:
    worker = broker.start()
    broker.accept(AT)
    worker.judge([REWRITTEN])
    worker.settle()
    assert broker.outcomes() == {AT: (DefinitionOutcome.ACCEPTED,)}


def test_a_table_that_the_ledger_has_as_to_be_copied_again_stops_nobody(broker: Broker) -> None:
    definition = REWRITTEN.definition
    ownership = Ownership({TABLE.oid: Copy("second", 6001)})
    [met] = arrivals_of(message(6, definition), ownership)
    assert met == Arrival(6, Position(LSN(6000), 1), 6, definition, is_copied=True)
    worker = broker.start()
    worker.judge([met])
    worker.settle()
    assert broker.outcomes() == {met.position: (DefinitionOutcome.RECOPIED,)}
    [later] = arrivals_of(message(7, definition), ownership)
    with pytest.raises(TerminalError, match=r"--recopy public.t"):
        worker.judge([later])


@pytest.mark.parametrize(("cohort", "lane"), [({TABLE.oid}, Lane.CATCH_UP), ({TABLE.oid + 1}, Lane.CHANGES)])
def test_a_definition_arrives_in_the_lane_of_its_table_alone(cohort: set[int], lane: Lane) -> None:
    """In the other one nobody is to be asked about it, nor is it noted as a copy's."""
    arrived = {
        each: list(arrivals_of(message(6, REWRITTEN.definition), Ownership({}, lane=each, cohort=frozenset(cohort))))
        for each in (Lane.CHANGES, Lane.CATCH_UP)
    }
    assert [each for each, found in arrived.items() if found] == [lane]
    assert not arrived[lane][0].is_copied


def test_a_new_column_that_rules_say_nothing_of_stops_the_worker_until_it_is_accepted(broker: Broker) -> None:
    with pytest.raises(TerminalError, match=r"'public.t' has a new column \(more\).*accept 0/5000:3.*new-columns: pass"):
        broker.start(rules=RULES).judge([arrival()])
    broker.start(rules=RULES, new_columns="pass").judge([arrival()])
    broker.start().judge([arrival()])
    broker.accept(AT)
    worker = broker.start(rules=RULES)
    worker.judge([arrival()])
    worker.settle()
    assert broker.outcomes() == {AT: (DefinitionOutcome.APPLIED,)}
    assert broker.transformation.held == {}


def test_a_new_column_is_held_through_restarts_until_somebody_decides(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_definitions, "DECISIONS_INTERVAL_S", 0.0)
    worker = broker.start(rules=RULES, new_columns="hold")
    assert not worker.may_be_decided
    worker.judge([arrival()])
    assert broker.transformation.held == {TABLE.oid: frozenset({3})}
    worker.settle()
    assert broker.outcomes() == {AT: (DefinitionOutcome.HELD,)}
    assert "a new column is left out of rows until an operator decides" in caplog.text
    worker = broker.start(rules=RULES, new_columns="hold")
    assert broker.transformation.held == {TABLE.oid: frozenset({3})}
    worker.judge([arrival()])
    assert worker.may_be_decided
    worker.look_for_decisions()
    assert broker.transformation.held == {TABLE.oid: frozenset({3})}
    broker.accept(AT)
    worker.look_for_decisions()
    assert broker.transformation.held == {}
    assert not worker.may_be_decided
    assert broker.ask(lambda bucket: load_held(bucket, "w")) == ()
    broker.start(rules=RULES, new_columns="hold")
    assert broker.transformation.held == {}


def test_what_else_a_definition_alters_is_done_while_its_new_column_is_held(broker: Broker) -> None:
    worker = broker.start(rules=RULES, new_columns="hold")
    worker.judge([arrival(with_columns(ID, replace(NOTE, name="remark"), MORE))])
    worker.settle()
    assert broker.outcomes() == {AT: (DefinitionOutcome.APPLIED, DefinitionOutcome.HELD)}


def test_nothing_is_held_any_more_where_new_columns_pass(broker: Broker) -> None:
    broker.start(rules=RULES, new_columns="hold").judge([arrival()])
    broker.start(rules=RULES, new_columns="pass")
    assert broker.transformation.held == {}
    broker.start(rules=RULES, new_columns="hold")
    assert broker.transformation.held == {}


def test_a_held_column_that_comes_to_identify_rows_is_a_persons_decision(broker: Broker) -> None:
    worker = broker.start(rules=RULES, new_columns="hold")
    worker.judge([arrival()])
    keyed = with_columns(ID, NOTE, replace(MORE, primary_key_position=2), identity_columns=(1, 3))
    with pytest.raises(TerminalError, match=r"'pgsluice ddl accept public.t'"):
        worker.judge([arrival(keyed, WIDER)])


def test_definitions_are_given_to_a_sink_between_the_receipts_around_them(broker: Broker) -> None:
    given: list[object] = []
    receipts = [Receipt(first, last, 1, 0, 0, b"") for first, last in ((1, 2), (3, 3), (4, 5), (6, 6))]
    arrivals = [replace(arrival(), sequence=sequence) for sequence in (3, 5, 6)]
    taken = given_in_place(receipts, arrivals, lambda definition, position: given.append(position))
    for receipt in taken:
        given.extend([receipt.last_sequence])
    assert given == [2, AT, 3, AT, 5, AT, 6]
    worker = broker.start()
    assert worker.in_place(receipts) is receipts, "nothing is done where there is no definition"
    worker.judge([arrival()])
    assert worker.in_place(receipts) is not receipts
    assert broker.start(SqliteSink(worker_settings(broker.group), {"path": ""})).in_place(receipts) is receipts


def test_a_sink_that_takes_none_is_said_once_to_pass_over_them(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    worker = broker.start(UnawareSink())
    for number in (1, 2):
        worker.judge([replace(REWRITTEN, position=Position(LSN(number), 1)), replace(UNKNOWN, position=Position(LSN(number), 2))])
        worker.settle()
    assert set(broker.outcomes().values()) == {(DefinitionOutcome.PASSED_OVER,)}
    assert len(broker.outcomes()) == 4
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == ["this sink ignores schema changes; 'pgsluice ddl log' shows them"]


def test_a_sink_that_passes_them_on_is_noted_so(broker: Broker) -> None:
    worker = broker.start(SqliteSink(worker_settings(broker.group), {"path": ""}))
    worker.judge([REWRITTEN])
    worker.settle()
    assert broker.outcomes() == {AT: (DefinitionOutcome.PASSED_ON,)}


def test_a_policy_that_cannot_be_meant_is_refused(broker: Broker) -> None:
    with pytest.raises(UsageError, match="ddl-policy"):
        broker.start(ddl_policy={"drop-column": "recopy"})


def test_a_copy_holds_rows_of_a_table_and_what_it_was_like() -> None:
    """A message of rows has no arrivals."""
    assert list(arrivals_of(message(1, insert(table("t", "id bigint"), b"1")), Ownership({}))) == []

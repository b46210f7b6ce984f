"""The oracle is the server itself: who replays the decoded changes has the rows that the server had at the end."""

from __future__ import annotations

import pytest

from pgsluice.shared.pgoutput import decode_message
from pgsluice.shared.pgoutput.messages import OLD_ROW, Row
from pgsluice.shared.rows.changes import DELETE, INSERT
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.wire.table import Table, Unchanged, Value
from tests.servers import Database
from tests.shared.pgoutput.bodies import Change, TableTruncation, changes_of_columns, cut_bodies
from tests.shared.pgoutput.corpus import Recording, record, recordings
from tests.shared.pgoutput.scenarios import SCENARIOS, Scenario

CHANGES_PER_BODY = 7


@pytest.mark.parametrize("recording", [recording for recording in recordings() if recording.rows], ids=str)
def test_recorded_changes_replay_to_the_rows_the_server_had(recording: Recording) -> None:
    assert_replays(recording)


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario.tables], ids=lambda scenario: scenario.name)
def test_changes_of_a_live_server_replay_to_its_rows(scenario: Scenario, source_database: Database) -> None:
    with source_database.connect() as connection:
        assert_replays(record(connection, scenario))


def test_each_scenario_is_recorded_from_each_version() -> None:
    versions = {recording.server_version for recording in recordings()}
    assert {(recording.server_version, recording.scenario) for recording in recordings()} == {
        (version, scenario.name) for version in versions for scenario in SCENARIOS
    }


def assert_replays(recording: Recording) -> None:
    bodies = cut_bodies([decode_message(message) for message in recording.messages], CHANGES_PER_BODY)
    rows: dict[str, list[Row]] = {name: [] for name in recording.rows}
    for sequence, body in enumerate(bodies, 1):
        changes = decode_changes(body.data, first_sequence=sequence, sequence=sequence, first_ordinal=body.first_ordinal)
        for change in changes_of_columns(changes):
            replay(change, rows)
    for name, expected in recording.rows.items():
        assert sorted(map(repr, rows[name])) == sorted(repr(tuple(as_sent(value) for value in row)) for row in expected)


def as_sent(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def replay(change: Change | TableTruncation, rows: dict[str, list[Row]]) -> None:
    if isinstance(change, TableTruncation):
        for table in change.tables:
            rows[table.qualified_name] = []
        return
    present = rows.setdefault(change.table.qualified_name, [])
    if change.operation == INSERT:
        present.append(change.new)
        return
    index = find(change, present)
    if change.operation == DELETE:
        del present[index]
    else:
        pairs = zip(change.new, present[index], strict=True)
        present[index] = tuple([kept if isinstance(value, Unchanged) else value for value, kept in pairs])


def find(change: Change, present: list[Row]) -> int:
    """Where the row is that ``change`` means: by all its old values, by its old key, or by its key, which did not change."""
    if change.old_kind == OLD_ROW:
        return present.index(change.old)
    key = key_of(change.table, change.old or change.new)
    return next(index for index, row in enumerate(present) if key_of(change.table, row) == key)


def key_of(table: Table, row: Row) -> list[Value]:
    key = [value for column, value in zip(table.columns, row, strict=True) if column.identity_key]
    assert key, "a row without a replica identity cannot be found"
    return key

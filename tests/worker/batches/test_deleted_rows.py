"""Rows that say themselves that they are deleted are taken for what they are, by rules, sinks and dead letters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.rules.transformation_files import load_transformation
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.rows.changes import DELETE, CopiedRows, TableChanges
from pgsluice.shared.rows.columns import decode_changes
from pgsluice.shared.rows.copy_text import decode_rows
from pgsluice.shared.wire.run_mark import RunMark
from pgsluice.shared.wire.table import Value
from pgsluice.testing.changes_builder import begins_run, of_run, table
from pgsluice.worker.batches.deleted_rows import check_deletes, split_deleted
from pgsluice.worker.dead_letters.letter import copied_row_body

ITEMS = table("public.items", "id bigint", "note text", "gone_at timestamptz")
FLAGGED = table("public.flagged", "note text", "id bigint", "gone boolean", key=("id",))
MARK = RunMark(1, 100, deletes=3)


def rows_of(copied: CopiedRows) -> list[tuple[Value, ...]]:
    return list(zip(*decode_rows(bytes(copied.data), len(copied.table.columns)), strict=True))


def test_a_value_in_the_column_says_so_and_only_the_key_goes_on() -> None:
    copied = of_run(4, ITEMS, MARK, (b"1", b"a", None), (b"2", b"b", b"2026-01-01"), (b"3", b"\\N", None))
    kept, gone = split_deleted(copied)
    assert (rows_of(kept), kept.numbers, kept.deletes) == ([(b"1", b"a", None), (b"3", b"\\N", None)], (0, 2), False)
    assert (rows_of(gone), gone.numbers, gone.deletes) == ([(b"2", None, None)], (1,), True)


def test_of_a_boolean_true_says_so() -> None:
    copied = of_run(4, FLAGGED, MARK, (b"a", b"1", b"f"), (b"b", b"2", b"t"), (b"c", b"3", None))
    kept, gone = split_deleted(copied)
    assert [row[1] for row in rows_of(kept)] == [b"1", b"3"]
    assert rows_of(gone) == [(None, b"2", None)]
    assert split_deleted(of_run(4, FLAGGED, MARK, (b"a", b"1", b"f")))[0].deletes is False
    assert [each.deletes for each in split_deleted(of_run(4, FLAGGED, MARK, (b"a", b"1", b"t")))] == [True]


def test_without_such_a_column_nothing_is_split() -> None:
    copied = of_run(4, ITEMS, RunMark(1, 100), (b"1", b"a", b"2026-01-01"))
    assert split_deleted(copied) == [copied]


def test_a_filter_that_does_not_know_the_row_lets_its_deletion_pass(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("tables:\n  public.items:\n    - {type: filter, column: note, parameters: {operator: eq, value: wanted}}\n")
    transformation = load_transformation(str(file), "")
    gone = replace(of_run(4, ITEMS, MARK, (b"2", None, None)), deletes=True)
    [passed], rejected = transformation.apply_copied(gone)
    assert rows_of(passed) == [(b"2", None, None)]
    assert passed.deletes
    assert not rejected
    others, _ = transformation.apply_copied(of_run(4, ITEMS, MARK, (b"2", b"other", None)))
    assert sum(rows.rows for rows in others) == 0


def test_a_letter_of_such_a_row_deletes_when_it_is_replayed() -> None:
    copied = of_run(4, ITEMS, MARK, (b"2", b"b", b"2026-01-01"))
    message = decode_changes(copied_row_body(copied, (b"2", b"b", b"2026-01-01")), first_sequence=1, sequence=1, first_ordinal=1)
    [part] = message.parts
    assert isinstance(part, TableChanges)
    assert list(part.operations) == [DELETE]
    assert part.old is not None
    assert part.old[0] == [b"2"]


def test_a_sink_that_cannot_delete_refuses_the_run_before_its_first_row() -> None:
    with pytest.raises(TerminalError, match="this sink cannot do"):
        check_deletes(begins_run(1, ITEMS, MARK), object())
    check_deletes(begins_run(1, ITEMS, RunMark(1, 100)), object())

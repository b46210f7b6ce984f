"""``pgsluice steps test`` shows what steps make of rows, and where they fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pgsluice.console.pipelines.step_trial import try_steps
from pgsluice.shared.config.connections import LogSettings
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings, StepsSettings

MODULE = "tests.replicator.pipelines.steps.example_steps"
ROWS = '{"id": 1, "v": "12", "price": "1.50"}\n\n{"id": 2, "v": "x"}\n{"id": 3, "v": "-7", "price": "NaN"}\n'


def attempt(directory: Path, function: str, rows: str = ROWS, **types: str) -> None:
    attempt_steps(directory, f"[{{python: '{MODULE}:{function}'}}]", rows, **types)


def attempt_steps(directory: Path, steps: str, rows: str = ROWS, **types: str) -> None:
    pipelines, given = directory / "pipelines.yaml", directory / "rows.jsonl"
    pipelines.write_text(f"pipelines:\n  ratings:\n    query: SELECT 1\n    target: t\n    key: [id]\n    steps: {steps}\n")
    given.write_text(rows)
    settings = StepsSettings(CatalogSettings(str(pipelines), ""), LogSettings("INFO", "text"))
    try_steps(settings, "ratings", str(given), types)


def test_rows_that_come_out_are_written_as_lines_with_their_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempt(tmp_path, "shout", '{"id": 9007199254740993, "v": "a\\tb"}')
    written = capsys.readouterr()
    assert written.out == '{"id":9007199254740993,"v":"A\\tB!","size":4}\n'
    assert written.err == "columns: id bigint, v text, size integer\n"


def test_a_row_on_which_a_step_fails_is_told_by_its_place_and_the_others_come_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TerminalError, match="steps fail on 2 of 3 rows"):
        attempt(tmp_path, "whole_number", price="numeric(5,2)")
    written = capsys.readouterr()
    assert written.out == '{"id":1,"v":"12","price":1.50,"n":12}\n'
    second, third, _ = written.err.splitlines()
    assert second.startswith(f"row 2: step 1 ({MODULE}:whole_number) failed: ValueError at ")
    assert third.startswith("row 3: column 'price' holds a value of numeric(5,2) that Arrow does not have")


@pytest.mark.long
def test_sql_and_functions_are_tried_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement = "SELECT id, v, cast(v AS int) * 2 AS n, price FROM rows WHERE id < 3 OR price IS NULL"
    steps = json.dumps([{"sql": statement}, {"python": f"{MODULE}:shout"}, {"sql": "SELECT * EXCEPT (size) FROM rows"}])
    with pytest.raises(TerminalError, match="steps fail on 1 of 3 rows"):
        attempt_steps(tmp_path, steps)
    written = capsys.readouterr()
    assert written.out == '{"id":1,"v":"12!","n":24,"price":"1.50"}\n'
    assert written.err.splitlines() == [
        "row 2: step 1 (sql) failed: CAST_INVALID_INPUT",
        "columns: id bigint, v text, n integer, price text",
    ]
    with pytest.raises(UsageError, match=r"step 1 \(sql\) calls uuid, .* \(line 1, column 12\)"):
        attempt_steps(tmp_path, "[{sql: 'SELECT id, uuid() AS u FROM rows'}]")


@pytest.mark.parametrize(
    ("function", "said"), [("by_chance", "other rows the second time"), ("numbered", "other rows when each row comes alone")]
)
def test_steps_that_depend_on_more_than_the_row_are_found_out(tmp_path: Path, function: str, said: str) -> None:
    with pytest.raises(TerminalError, match=said):
        attempt(tmp_path, function)


@pytest.mark.parametrize(
    ("rows", "types", "said"),
    [
        ("[1]", {}, r"rows\.jsonl:1: not a JSON object"),
        ('{"v": 1}', {}, "no column id"),
        ('{"id": 1}', {"id": "number"}, "type 'number' of column 'id' is not known here"),
    ],
)
def test_what_cannot_be_tried_is_refused(tmp_path: Path, rows: str, types: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        attempt(tmp_path, "shout", rows, **types)


def test_the_command_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / "marts.py").write_text("def same(batch, settings):\n    return batch\n")
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "pipelines.yaml").write_text(
        "pipelines: {ratings: {query: SELECT 1, target: t, key: [id], steps: [{python: 'marts:same'}]}}"
    )
    command = [str(Path(sys.executable).with_name("pgsluice")), "steps", "test", "ratings", "--input", "rows.jsonl"]
    ended = subprocess.run(
        [*command, "--pipelines-config", "pipelines.yaml"], cwd=tmp_path, env={"PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, '{"id":1}\n'), ended.stderr

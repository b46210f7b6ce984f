"""``pgsluice rules check`` and ``pgsluice rules test``, as a team's CI runs them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pgsluice.console.program import run
from pgsluice.shared.wire.table import Table
from pgsluice.testing.changes_builder import delete, insert, message, table, update
from pgsluice.worker.sinks.lines.json_lines import encode_lines
from tests.servers import Database
from tests.source_code import REPOSITORY

RULES = """\
tables:
  users:
    - {type: transform, column: email, parameters: {type: mask, mask_char: "*"}}
    - {type: filter, column: age, parameters: {operator: gte, value: 18}}
"""
ROUTES = """\
users:
  - {destination_table: crm.people, column_mappings: [{source: id, destination: person}]}
  - {destination_schema: log, operations: [INSERT]}
"""
USERS = table("public.users", "id bigint", "email text", "age integer")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def trial(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], *, code: int = 0) -> list[str]:
    """What ``rules test`` prints, each line from its second blank on."""
    assert run(["rules", "test", *arguments]) == code
    return capsys.readouterr().out.splitlines()


def test_well_formed_files_are_counted_and_their_hash_is_that_of_the_worker(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rules", "check", write("rules.yaml", RULES), "--routing", write("routing.yaml", ROUTES)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 rules and 2 routes are well formed; hash ")
    assert len(out.split()[-1]) == 64


def test_a_file_without_a_root_is_told_of_without_a_source(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "check", write("rules.yaml", RULES.replace("tables:\n", ""))]) == 0
    warning, counted = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: ")
    assert "there is no 'tables:' above the tables" in warning
    assert counted.startswith("2 rules and 0 routes are well formed")


def test_a_file_with_mistakes_is_refused_with_all_of_them(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rules = write("rules.yaml", RULES.replace("mask_char", "maskchar").replace("gte", "ge"))
    assert run(["rules", "check", rules]) == 2
    said = capsys.readouterr().err
    assert "rules.yaml:3: table 'users', rule 1" in said
    assert "rules.yaml:4: table 'users', rule 2" in said


def test_a_routing_file_can_be_checked_alone(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "check", "--routing", write("routing.yaml", "users: {destination: x}")]) == 2
    assert "routing.yaml:1: table 'users': unknown key 'destination'" in capsys.readouterr().err
    assert run(["rules", "check"]) == 2


def test_a_search_mapping_can_be_checked_alone(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "check", "--search-mapping", write("search.yaml", "tables: {users: {columns: {age: long}}}")]) == 2
    assert "search.yaml:1: column 'age' of 'users' has no type" in capsys.readouterr().err
    assert run(["rules", "check", "--search-mapping", write("search.yaml", "tables: {users: {settings: {x: 1}}}")]) == 0


def test_each_rule_tells_what_it_does_to_each_change(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines = encode_lines(
        message(
            1,
            insert(USERS, b"7", b"ann@x.org", b"30"),
            insert(USERS, b"8", None, b"3"),
            update(USERS, b"7", b"ann@x.org", b"17"),
            delete(USERS, b"7", None, None),
        ),
        transactions=True,
    )
    shown = trial(
        capsys,
        [write("r.yaml", RULES), write("in.jsonl", b"".join(lines)), "--routing", write("to.yaml", ROUTES)],
    )
    rule = [line.strip().partition("table 'users', ")[2] or line.strip() for line in shown]
    assert rule == [
        "line 2: INSERT public.users",
        'rule 1: email "ann@x.org" -> "a*******g"',
        "rule 2: kept",
        '=> INSERT crm.people {"after":{"person":7,"email":"a*******g","age":30}}',
        '=> INSERT log.users {"after":{"id":7,"email":"a*******g","age":30}}',
        "line 3: INSERT public.users",
        "rule 1: nothing to change",
        "rule 2: dropped",
        "=> nothing",
        "line 4: UPDATE public.users",
        'rule 1: email "ann@x.org" -> "a*******g"',
        "rule 2: the UPDATE becomes DELETE",
        '=> DELETE crm.people {"before":{"person":7}}',
        "line 5: DELETE public.users",
        "rule 1: nothing to change",
        "rule 2: kept",
        '=> DELETE crm.people {"before":{"person":7}}',
        "4 changes: 1 dropped, 3 passed",
    ]


def test_what_becomes_of_columns_that_no_rule_names_is_a_step_of_its_own(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rules = "tables:\n  users:\n    unlisted: null\n    keep: [id]\n    rules:\n" + RULES.partition("users:\n")[2]
    lines = write("in.jsonl", b"".join(encode_lines(message(1, insert(wider(), b"7", b"ann@x.org", b"30", b"Ann")))))
    shown = trial(capsys, [write("r.yaml", rules), lines])
    assert shown[3].endswith("table 'users': unlisted: name \"Ann\" -> NULL")
    assert shown[4] == '  => INSERT public.users {"after":{"id":7,"email":"a*******g","age":30,"name":null}}'
    refusing = rules.replace("null", "refuse")
    assert run(["rules", "test", write("r.yaml", refusing), lines]) == 70
    assert "no rule names column 'name' of table 'public.users', and 'unlisted' is refuse" in capsys.readouterr().err


def test_the_example_about_personal_data_shows_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "mask-personal-data.md").read_text()
    rules, _, rest = page.partition("```yaml\n")[2].partition("```")
    shown = rest.partition("```\n")[2].partition("```")[0]
    customers = table(
        "public.customers", "id bigint", *(f"{name} text" for name in ("email", "name", "phone", "country", "created_at"))
    )
    row = (b"7", b"alice@example.com", b"Alice Smith", b"5551234567", b"DE", b"2026-01-30")
    monkeypatch.chdir(tmp_path)
    Path("rules.yml").write_text(rules)
    Path("changes.jsonl").write_bytes(b"".join(encode_lines(message(1, insert(customers, *row)))))
    assert trial(capsys, ["rules.yml", "changes.jsonl"]) == shown.splitlines()


def wider() -> Table:
    return table("public.users", "id bigint", "email text", "age integer", "name text")


def test_changes_come_from_standard_input_when_no_file_is_named(
    write: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b"".join(encode_lines(message(1, insert(USERS, b"7", b"ann@x.org", b"30"))))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert trial(capsys, [write("r.yaml", RULES)])[-1] == "1 changes: 1 passed"


def test_both_images_of_an_update_are_shown(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    change = {
        "operation": "UPDATE",
        "schema": "public",
        "table": "users",
        "key": {"id": 1},
        "before": {"id": 1, "email": "old@x.org", "age": 20},
        "after": {"id": 1, "email": "new@x.org", "age": 20},
    }
    shown = trial(capsys, [write("r.yaml", RULES), write("in.jsonl", json.dumps(change))])
    assert any('old email "old@x.org" -> "o*******g"' in line for line in shown)
    assert any(': email "new@x.org" -> "n*******g"' in line for line in shown)


def test_numbers_keep_their_digits_and_documents_their_content(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rules = "tables:\n  t:\n    - {type: filter, column: n, parameters: {operator: eq, value: 9007199254740993}}\n"
    change = (
        '{"operation":"INSERT","schema":"s","table":"t","key":null,"before":null,"after":{"n":%s,"x":1.50,"d":{"a":[1,true]}}}\n'
    )
    shown = trial(capsys, [write("r.yaml", rules), write("in.jsonl", change % "9007199254740993" + change % "9007199254740992")])
    assert [line for line in shown if "=>" in line] == [
        '  => INSERT s.t {"after":{"n":9007199254740993,"x":1.50,"d":{"a":[1,true]}}}',
        "  => nothing",
    ]


def test_a_change_that_a_rule_cannot_process_fails_the_command(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    regex = "{type: regex, pattern: '(?=a)(a|aa)+$', replace: x, time_limit_ms: 20}"
    rules = write("r.yaml", f"tables:\n  users:\n    - {{type: transform, column: email, parameters: {regex}}}\n")
    line = b"".join(encode_lines(message(1, insert(USERS, b"7", b"a" * 100 + b"!", b"30"))))
    shown = trial(capsys, [rules, write("in.jsonl", line)], code=2)
    assert "rule 1: cannot process it" in shown[1]
    assert shown[-1] == "1 changes: 1 not processed"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"operation": "INSERT"', "in.jsonl:2: not a change as a JSON line (JSONDecodeError)"),
        ('{"operation": "UPSERT", "schema": "s", "table": "t", "after": {}}', "in.jsonl:2: not a change"),
        ('{"operation": "INSERT", "schema": "s", "table": "t", "after": "secret"}', "in.jsonl:2: not a change"),
        ("[]", "in.jsonl:2: not a change"),
    ],
)
def test_a_line_that_is_no_change_is_named_and_not_shown(
    write: Any, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    assert run(["rules", "test", write("r.yaml", RULES), write("in.jsonl", "\n" + line)]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert "secret" not in said.out + said.err


def source_flags(database: Database) -> list[str]:
    settings = database.settings
    named = {"group": "orders", "host": settings.host, "port": settings.port, "dbname": settings.dbname, "user": settings.user}
    return [f"--{name}={value}" for name, value in named.items()] + ["--password", settings.password or "unused"]


def test_the_source_knows_tables_columns_and_types(
    source_database: Database, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source_database.execute("CREATE TABLE users (id bigint PRIMARY KEY, email text, age text); CREATE TABLE other (id int)")
    rules, flags = write("r.yaml", RULES), source_flags(source_database)
    assert run(["rules", "check", rules, "--against-source", *flags]) == 0
    out = capsys.readouterr().out
    assert "they fit the source's 2 tables" in out
    assert "warning: " in out
    assert "REPLICA IDENTITY DEFAULT" in out
    source_database.execute("ALTER TABLE users RENAME COLUMN email TO mail")
    routes = write("to.yaml", "user: {destination_table: people}")
    assert run(["rules", "check", rules, "--routing", routes, "--against-source", *flags]) == 2
    said = capsys.readouterr().err
    assert "r.yaml:3: table 'users', rule 1" in said
    assert "to.yaml:1: table 'user': there is no table 'user'" in said


def test_rules_are_tried_with_the_types_of_the_source(
    source_database: Database, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source_database.execute("CREATE TABLE events (id bigint PRIMARY KEY, at timestamptz)")
    rules = "tables:\n  events:\n    - {type: filter, column: at, parameters: {operator: gt, value: '2026-01-31 10:00:00+02'}}\n"
    events = table("public.events", "id bigint", "at timestamptz")
    lines = encode_lines(
        message(1, insert(events, b"1", b"2026-01-31 09:00:00+00"), insert(events, b"2", b"2026-01-31 07:00:00+00"))
    )
    arguments = [write("r.yaml", rules), write("in.jsonl", b"".join(lines)), "--against-source", *source_flags(source_database)]
    assert trial(capsys, arguments)[-1] == "2 changes: 1 dropped, 1 passed"


def test_the_options_of_the_source_are_not_read_without_need(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "check", write("r.yaml", RULES), "--against-source"]) == 2
    said = capsys.readouterr().err
    assert all(f"{name} is not set" in said for name in ("group", "host", "dbname", "user"))

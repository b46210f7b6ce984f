"""Rules that users wrote, named ``module:Class``."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from pgsluice.rules.rule import Transform
from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.transformation_files import load_transformation, read_transformation
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.rows.changes import TableChanges
from pgsluice.testing import TransformationContract, insert, message, table, update
from pgsluice.worker.sinks.subscriptions.subscription_rules import read_rules

OWN = """
from pgsluice import Kind, Option, read, settings

@settings
class Options:
    text: str = read(Option("text", Kind.TEXT, "Stands before each value", "x-", required=True))

RETURNED = {"number": 7, "nul": "a\\0b", "surrogate": "\\ud800"}

class Prefix:
    options = Options

    def __init__(self, options):
        self._text = options.text

    def apply(self, text):
        if text == "secret":
            raise LookupError(text)
        if text in RETURNED:
            return RETURNED[text]
        return self._text + text.rstrip("0")

class OfDates(Prefix):
    def check_column(self, column):
        if column.type_name != "date":
            raise ValueError(f"is {column.type_name}, and no date")

class NoRule:
    def __init__(self, options): ...
"""
USERS = table("public.users", "id bigint", "name text", "born date")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the directory where the worker is started."""
    (tmp_path / "own_rules.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)


def rules(parameters: str, column: str = "name") -> str:
    return f"tables:\n  users:\n    - type: transform\n      column: {column}\n      parameters: {parameters}\n"


def rules_file(parameters: str, column: str = "name") -> str:
    Path("rules.yml").write_text(rules(parameters, column))
    return "rules.yml"


def test_a_rule_named_by_its_class_changes_old_and_new_rows_here_and_in_tasks() -> None:
    transformation = load_transformation(rules_file('{type: "own_rules:Prefix", text: "p-"}'), "")
    sent = pickle.loads(pickle.dumps(transformation))
    changes = message(1, insert(USERS, b"1", b"a00", None), update(USERS, b"1", None, None, old=(b"1", None, None)))
    for each in (transformation, sent):
        made, rejected = each.apply(changes)
        assert rejected == []
        (part,) = made.parts
        assert isinstance(part, TableChanges)
        assert part.new[1] == [b"p-a", None]


def test_a_row_that_a_rule_fails_on_is_a_dead_letter_without_its_value() -> None:
    transformation = load_transformation(rules_file('{type: "own_rules:Prefix", text: "p-"}'), "")
    rows = [
        insert(USERS, b"%d" % n, text, None) for n, text in enumerate((b"a", b"secret", b"number", b"nul", b"surrogate", b"b"))
    ]
    made, rejected = transformation.apply(message(1, *rows))
    (part,) = made.parts
    assert isinstance(part, TableChanges)
    assert part.new[1] == [b"p-a", b"p-b"]
    assert [each.change_index for each in rejected] == [1, 2, 3, 4]
    said = (
        "own_rules:Prefix raised LookupError",
        "own_rules:Prefix returned int, and no str",
        "own_rules:Prefix returned a text with a NUL",
        "own_rules:Prefix returned a text that UTF-8 cannot hold",
    )
    for each, reason in zip(rejected, said, strict=True):
        assert reason in each.reason
        assert "secret" not in each.reason


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ('{type: "own_rules:Prefix"}', "rules.yml:5: table 'users', rule 1.*text is not set.*among the rule's parameters"),
        ('{type: "own_rules:Prefix", text: a, txt: b}', "no option 'txt': did you mean 'text'"),
        ('{type: "nowhere:Prefix"}', "rule nowhere:Prefix cannot be loaded: there is no module 'nowhere'"),
        ('{type: "own_rules:Suffix"}', "'Suffix' is no class of"),
        ('{type: "own_rules:NoRule"}', "rule own_rules:NoRule lacks apply"),
        ("{type: prefix}", "prefix.*regex, mask"),
    ],
)
def test_a_rule_that_cannot_be_made_is_told_with_its_line(parameters: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_transformation(rules_file(parameters), "")


def test_what_every_transform_may_be_told_is_no_option_of_the_class() -> None:
    given = '{type: "own_rules:Prefix", text: a, keeps_unique: true, allow_empty_deletes: true}'
    transformation = load_transformation(rules_file(given), "")
    ((rule,),) = (entry.rules for entry in transformation.rules.entries)
    assert isinstance(rule, Transform)
    assert rule.keeps_unique


@pytest.mark.parametrize(
    ("rule", "column", "said"),
    [
        ("Prefix", "born", "born.* is date, and own_rules:Prefix takes text only"),
        ("OfDates", "name", "name.* is text, and no date"),
    ],
)
def test_a_column_that_a_rule_does_not_take_is_found_before_the_first_row(rule: str, column: str, said: str) -> None:
    transformation = load_transformation(rules_file(f'{{type: "own_rules:{rule}", text: a}}', column), "")
    with pytest.raises(TerminalError, match=said):
        transformation.rules.bind(USERS)


def test_rules_of_others_name_no_class() -> None:
    """What a subscription or a request brings: no code of this machine runs for it."""
    text = rules('{type: "own_rules:Prefix", text: a}')
    for refuses in (read_rules, lambda given: read_transformation(given, ""), lambda given: load_rules("rules", given)):
        with pytest.raises(UsageError, match="own_rules:Prefix is a class, which only a file of rules on a worker's own machine"):
            refuses(text)
    assert "own_rules" not in sys.modules


class Reversed:
    def apply(self, text: str) -> str:
        return text[::-1]


class TestReversed(TransformationContract):
    @pytest.fixture
    def rule(self) -> Reversed:
        return Reversed()


class Hashed:
    def apply(self, text: str) -> str:
        return str(hash(text))


def test_the_contract_refuses_a_rule_that_each_process_applies_otherwise() -> None:
    contract = TransformationContract()
    contract.test_every_value_becomes_a_text(Hashed())
    with pytest.raises(AssertionError):
        contract.test_another_process_makes_the_same(Hashed(), "1")


class Counting:
    def __init__(self) -> None:
        self._calls = 0

    def apply(self, text: str) -> str:
        self._calls += 1
        return f"{text}{self._calls}"


def test_the_contract_refuses_a_rule_that_remembers_what_came_before() -> None:
    contract = TransformationContract()
    contract.test_every_value_becomes_a_text(Counting())
    with pytest.raises(AssertionError):
        contract.test_the_same_value_always_becomes_the_same(Counting())


class Returning:
    def __init__(self, returned: object) -> None:
        self._returned = returned

    def apply(self, text: str) -> object:
        return self._returned


@pytest.mark.parametrize("returned", [7, b"bytes", None, "a\0b"])
def test_the_contract_refuses_a_rule_that_returns_what_is_no_text_of_postgresql(returned: object) -> None:
    with pytest.raises(AssertionError):
        TransformationContract().test_every_value_becomes_a_text(Returning(returned))

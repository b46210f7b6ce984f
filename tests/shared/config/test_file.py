"""The YAML file as text: its keys, their lines, and references to the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.shared.config.file import NO_FILE, ConfigEntry, expand, parse_config_file, read_config_file
from pgsluice.shared.config.kinds import Raw
from pgsluice.shared.errors import UsageError


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("0123", "0123"),
        ("no", "no"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-01-31", "2026-01-31"),
        ("'null'", "null"),
        ('"a\\tb"', "a\tb"),
        ("null", None),
        ("~", None),
        ("", None),
        ("''", ""),
        ("!!str 7", "7"),
        ("[a, 'b c', ~, '']", ("a", "b c")),
        ("{a: 1, b: }", {"a": "1", "b": ""}),
    ],
)
def test_a_scalar_keeps_its_characters(text: str, raw: Raw | None) -> None:
    assert parse_config_file("f.yaml", f"key: {text}\n").entries == {"key": ConfigEntry(1, raw)}


def test_every_key_has_its_line() -> None:
    file = parse_config_file("f.yaml", "# comment\na: 1\n\nb:\n  - x\n  - y\nc: z\n")
    assert {key: entry.line for key, entry in file.entries.items()} == {"a": 2, "b": 4, "c": 7}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_holds_no_keys(text: str) -> None:
    assert parse_config_file("f.yaml", text).entries == NO_FILE.entries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "f.yaml, line 2, column 1: not valid YAML: indent with spaces, not with a tab"),
        ("a: 1\nb: [1\n", "f.yaml, line 3, column 1: not valid YAML: "),
        ("a: 1\n b: 2\n", "f.yaml, line 2, column 3: not valid YAML: mapping values are not allowed"),
        ("a: '1\n", "f.yaml, line 2, column 1: not valid YAML: found unexpected end of stream"),
        ("a: *nothing\n", "f.yaml, line 1, column 4: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "f.yaml, line 2, column 1: not valid YAML: but found another document"),
        ("a: \x07\n", "f.yaml: not valid YAML: "),
        ("- a\n- b\n", "f.yaml, line 1: not a mapping of keys to values: write one 'key: value' a line, like 'group: orders'"),
        ("just text\n", "f.yaml, line 1: not a mapping of keys to values: "),
    ],
)
def test_what_is_not_a_yaml_mapping_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_config_file("f.yaml", text)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "value", ["*hunter2", "!hunter2!x", "'hunter2", '"hunter2\\q"', "[hunter2", "hunter2: hunter2: x", "%hunter2"]
)
def test_invalid_yaml_is_not_quoted_because_it_may_be_a_secret(value: str) -> None:
    with pytest.raises(UsageError, match="not valid YAML: ") as raised:
        parse_config_file("f.yaml", f"password: {value}\n")
    assert "hunter2" not in str(raised.value)


def test_mistakes_that_leave_the_rest_readable_are_collected() -> None:
    file = parse_config_file("f.yaml", "a: 1\na: 2\nb: [[x]]\nc: {d: {e: f}}\ng: ok\n")
    assert [str(problem).split(": ")[0:2] for problem in file.problems] == [
        ["f.yaml, line 2", "a occurs twice"],
        ["f.yaml, line 3", "b is nested deeper than one level"],
        ["f.yaml, line 4", "c is nested deeper than one level"],
    ]
    assert file.entries["a"] == ConfigEntry(1, "1")
    assert file.entries["g"] == ConfigEntry(5, "ok")


def test_an_alias_to_its_own_list_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        parse_config_file("f.yaml", "b: 1\na: &a [*a]\n")
    assert str(raised.value) == "f.yaml, line 2, column 4: not valid YAML: an alias refers to a node that contains it"


def test_merge_keys_bring_what_others_say_and_the_own_key_wins() -> None:
    text = "spark: &all {a: 1, b: 2}\nspark-more:\n  <<: *all\n  b: 3\n<<: {group: g, spark: x}\n"
    file = parse_config_file("f.yaml", text)
    assert not file.problems
    assert {key: entry.raw for key, entry in file.entries.items()} == {
        "group": "g",
        "spark": {"a": "1", "b": "2"},
        "spark-more": {"a": "1", "b": "3"},
    }


def test_a_tag_makes_no_object() -> None:
    assert parse_config_file("f.yaml", "a: !!python/object/apply:os.getcwd []\n").entries == {"a": ConfigEntry(1, ())}


@pytest.mark.parametrize(
    ("raw", "expanded"),
    [
        ("${A}", "1"),
        ("x${A}y${B}z", "x1y2 3z"),
        ("${NONE:-text}", "text"),
        ("${EMPTY:-text}", "text"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${A:-text}", "1"),
        ("$${A}", "${A}"),
        ("pa$word$", "pa$word$"),
        ("$A", "$A"),
        (("${A}", "${NONE:-}", "b"), ("1", "b")),
        ({"k": "${B}"}, {"k": "2 3"}),
    ],
)
def test_a_reference_stands_for_a_variable(raw: Raw, expanded: Raw) -> None:
    assert expand(raw, {"A": "1", "B": "2 3", "EMPTY": ""}) == expanded


def test_what_a_variable_holds_is_not_expanded_again() -> None:
    assert expand("${A}", {"A": "${B}", "B": "x"}) == "${B}"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("${NONE}", "refers to the environment variable NONE, which is not set"),
        ("${A", "holds a '${' that is not"),
        ("${}", "holds a '${' that is not"),
        ("${A?x}", "holds a '${' that is not"),
    ],
)
def test_a_reference_without_a_value_is_refused(raw: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"\$|NONE") as raised:
        expand(raw, {"A": "1"})
    assert str(raised.value).startswith(reason)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"group: caf\xe9\n")
    with pytest.raises(UsageError, match=r"latin.yaml is not UTF-8 \(byte 10\): save it as UTF-8"):
        read_config_file(str(path))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        read_config_file(str(tmp_path))


def test_of_several_mappings_that_are_merged_the_first_one_that_has_a_key_counts() -> None:
    """Whatever the key's length, and whichever release of PyYAML reads it."""
    text = "a: &a {note: first, n: first}\nb: &b {note: second, n: second, more: x}\nc: {<<: [*a, *b]}\n"
    file = parse_config_file("f.yaml", text)
    assert file.entries["c"].raw == {"note": "first", "n": "first", "more": "x"}


def test_only_mappings_can_be_merged() -> None:
    with pytest.raises(UsageError, match=r"line 1, column 10: not valid YAML: a merge key takes mappings only"):
        parse_config_file("f.yaml", "a: {<<: [x]}\n")

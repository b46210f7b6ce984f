"""Patterns and replacements: what they mean, what is refused, and what a pattern can cost at most."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.rules.regex_replace import regex_replace
from pgsluice.testing.changes_builder import insert, table
from tests.rules.applied import rejected, rules

HOSTILE = "(?=x)^(x|xx)+$"
"""Look-around keeps it from RE2, and many an x before another letter keeps it busy."""


def replaced(pattern: str, replace: str, text: str) -> str:
    (value,), failures = regex_replace(pattern, replace).apply([text.encode()])
    assert not failures
    return value.decode()


@pytest.mark.parametrize(
    ("pattern", "replace", "text", "expected"),
    [
        (r"^(\d{3})(\d{3})(\d{4})$", "($1) $2-$3", "5551234567", "(555) 123-4567"),
        (r"^(\d{3})(\d{3})(\d{4})$", r"(\1) \2-\3", "5551234567", "(555) 123-4567"),
        (r"^(\d{3})(\d{3})(\d{4})$", "($1) $2-$3", "555-1234", "555-1234"),
        (r"(\d+)", "${1}0", "5 and 6", "50 and 60"),
        (r"(\d+)", "$1st", "1", "1st"),
        (r"(?P<user>\w+)@", "<$user>@", "alice@x", "<alice>@x"),
        (r"(?P<user>\w+)@", "${user}s@", "alice@x", "alices@x"),
        (r"(?P<user>\w+)@", r"\g<user>@", "alice@x", "alice@x"),
        (r"a", "$0$0", "banana", "baanaanaa"),
        (r"a", "$$", "banana", "b$n$n$"),
        (r"a", r"\\", "banana", "b\\n\\n\\"),
        (r"a", "5 $ ", "a", "5 $ "),
        (r"a", "", "banana", "bnn"),
        (r"\.", ":\U0001f600", "\U0001f600.\U0001f601", "\U0001f600:\U0001f600\U0001f601"),
        (r"(?i)Ä", "ae", "äÄ", "aeae"),
        (r".+", "x", "one\ntwo", "x\nx"),
        (r"(a)|(b)", "[$1|$2]", "ab", "[a|][|b]"),
        ("".join(f"({letter})" for letter in "abcdefghij"), "$10$1", "abcdefghij", "ja"),
        (r"(?<=a)b", "x", "abb", "axb"),
        (r"(a)\1", "<$1>", "aab", "<a>b"),
        (r"(?<=(a))b", r"\\$1$$", "ab", "a\\a$"),
    ],
)
def test_a_replacement_stands_for_each_match(pattern: str, replace: str, text: str, expected: str) -> None:
    assert replaced(pattern, replace, text) == expected


@pytest.mark.parametrize(
    ("pattern", "replace", "reason"),
    [
        ("(", "", "is not a regular expression"),
        ("[z-a]", "", "is not a regular expression"),
        ("(a)", "$2", "uses group 2, and the pattern has 1"),
        ("a", r"\1", "uses group 1, and the pattern has 0"),
        ("(?=(a))", "$2", "uses group 2, and the pattern has 1"),
        ("(a)", "$name", "no group 'name'"),
    ],
)
def test_what_is_no_pattern_and_a_group_that_it_does_not_have_are_refused(pattern: str, replace: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|replace") as refused:
        regex_replace(pattern, replace)
    assert reason in str(refused.value)


def test_a_pattern_that_would_go_back_for_ever_is_done_at_once_when_re2_takes_it() -> None:
    value = "x" * 100_000 + "!"
    started = time.monotonic()
    assert replaced(r"(x+x+)+y", "", value) == value
    assert time.monotonic() - started < 5


def test_a_hostile_value_costs_its_limit_and_is_rejected_by_a_rule_that_is_named() -> None:
    users = table("users", "id bigint", "name text")
    ruleset = rules(
        "users",
        f"{{type: transform, column: name, parameters: {{type: regex, pattern: '{HOSTILE}', replace: '', time_limit_ms: 50}}}}",
    )
    started = time.monotonic()
    result = rejected(ruleset, insert(users, b"1", b"good"), insert(users, b"2", b"x" * 40 + b"!"), insert(users, b"3", b"good"))
    assert time.monotonic() - started < 5
    assert [row.change_index for row in result] == [1]
    assert "rules.yml:3: table 'users', rule 1" in result[0].rule
    assert result[0].reason == "column 'name': the pattern took longer than its limit of 50 ms"


ALLOWANCE = 64 * 1024
LOOKING_AROUND = "(?=a)a"
"""As ``a``, by the package ``regex``."""


@pytest.mark.parametrize("pattern", ["a", LOOKING_AROUND])
@pytest.mark.parametrize(
    ("value", "replace", "size"),
    [
        (b"a" * 64, "x" * 1040, 16 * 64 + ALLOWANCE),
        (b"a" * 64, "x" * 1040 + "$0", None),
        (b"a" * 64, "x" * 1041, None),
        (b"ba" * 5000, "x" * 30, 5000 + 30 * 5000),
        (b"ba" * 5000, "x" * 70, None),
        (b"ba" * 5000, "$0" * 35, 5000 + 35 * 5000),
        (b"ba" * 5000, "$0" * 70, None),
        (b"b" * 1_000_000, "x" * 1000, 1_000_000),
        (b"a", "x" * ALLOWANCE, ALLOWANCE),
        (b"a", "x" * (ALLOWANCE + 17), None),
        ("aä".encode() * 5000, "ä" * 27, 5000 * 2 + 27 * 2 * 5000),
        ("aä".encode() * 5000, "ä" * 60, None),
    ],
)
def test_a_value_becomes_sixteen_times_its_size_and_64_kib_at_most(
    pattern: str, value: bytes, replace: str, size: int | None
) -> None:
    made, failures = regex_replace(pattern, replace, 60_000).apply([b"a b", value, b"b"])
    assert made[2] == b"b"
    if size is None:
        assert failures == {1: "the value would become larger than 16 times its size and 64 KiB"}
    else:
        assert (failures, len(made[1])) == ({}, size)


def test_a_group_that_looks_beyond_its_match_is_bounded_too() -> None:
    rule = regex_replace("(?=(.*))", "$1")
    assert replaced("(?=(.*))", "$1", "abc") == "abcabcbcc"
    assert list(rule.apply([b"a" * 100_000]).failures) == [0]


def test_replacements_in_a_row_that_would_make_gigabytes_of_some_bytes_reject_the_row() -> None:
    users = table("users", "id bigint", "name text")
    rule = f"{{type: transform, column: name, parameters: {{type: regex, pattern: '.', replace: {'x' * 1000}}}}}"
    (row,) = rejected(rules("users", rule, rule, rule), insert(users, b"1", b"0123456789"))
    assert row.reason == "column 'name': the value would become larger than 16 times its size and 64 KiB"


@given(
    st.lists(st.text(alphabet="ab1\n\U0001f600", max_size=8), max_size=6),
    st.sampled_from([r"a+", r"(b)|\d", r"^a|b$", "", "(?<=a)b"]),
)
def test_what_a_value_becomes_does_not_depend_on_its_neighbours(texts: list[str], pattern: str) -> None:
    rule = regex_replace(pattern, "<$0>")
    together = rule.apply([text.encode() for text in texts]).values
    assert list(together) == [rule.apply([text.encode()]).values[0] for text in texts]

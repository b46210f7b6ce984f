"""What a mask leaves, and that it is never more than it promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.rules.mask import Mask

EMOJI = "\U0001f600"


def masked(mask: Mask, text: str) -> str:
    (value,), failures = mask.apply([text.encode()])
    assert not failures
    return value.decode()


@pytest.mark.parametrize(
    ("mask", "text", "expected"),
    [
        (Mask("*"), "secret", "s****t"),
        (Mask("#"), "secret", "s####t"),
        (Mask("\u2022"), "abcd", "a\u2022\u2022d"),
        (Mask("*"), "éàü", "é*ü"),
        (Mask("*"), f"{EMOJI}a{EMOJI}", f"{EMOJI}*{EMOJI}"),
        (Mask("*"), "ab", "**"),
        (Mask("*"), "é", "*"),
        (Mask("*", keep_first=0, keep_last=0), "secret", "******"),
        (Mask("*", keep_first=0, keep_last=4), "4111111111111234", "************1234"),
        (Mask("*", keep_first=0, keep_last=4), "1234", "****"),
        (Mask("*", keep_first=2, keep_last=0), "secret", "se****"),
        (Mask("*", keep_first=2, keep_last=0), "se", "**"),
        (Mask("*", keep_domain=True), "alice@example.com", "a***e@example.com"),
        (Mask("*", keep_domain=True), "al@example.com", "**@example.com"),
        (Mask("*", keep_domain=True), '"a@b"@example.com', '"***"@example.com'),
        (Mask("*", keep_domain=True), "@example.com", "@**********m"),
        (Mask("*", keep_domain=True), "mail me @ home", "m************e"),
        (Mask("*", keep_domain=True), "al@example.com\nhome", "a*****************e"),
        (Mask("*", keep_domain=True), "al@example.com\tAlice", "a******************e"),
        (Mask("*", keep_domain=True), "josé@exämple.com", "j**é@exämple.com"),
        (Mask("*", keep_domain=True), "no address", "n********s"),
        (Mask("*", keep_first=0, keep_last=0, keep_domain=True), "alice@example.com", "*****@example.com"),
        (Mask("*"), "x" * 1000, "x" + "*" * 998 + "x"),
    ],
)
def test_a_mask_hides_all_characters_but_those_it_keeps(mask: Mask, text: str, expected: str) -> None:
    assert masked(mask, text) == expected


@given(st.text(max_size=40), st.integers(0, 4), st.integers(0, 4))
def test_a_mask_leaves_no_more_than_it_promises(text: str, keep_first: int, keep_last: int) -> None:
    hidden = masked(Mask("\ue000", keep_first, keep_last), text.replace("\ue000", ""))
    clear = text.replace("\ue000", "")
    assert len(hidden) == len(clear)
    shown = [place for place, character in enumerate(hidden) if character != "\ue000"]
    assert len(shown) in (0, keep_first + keep_last)
    assert all(place < keep_first or place >= len(clear) - keep_last for place in shown)


def by_definition(mask: Mask, text: str) -> str:
    hidden = len(text) - mask.keep_first - mask.keep_last
    if hidden <= 0:
        return mask.mask_char * len(text)
    return text[: mask.keep_first] + mask.mask_char * hidden + text[mask.keep_first + hidden :]


texts = st.lists(st.text(alphabet="abc@", max_size=12), max_size=8) | st.lists(st.text(max_size=12), max_size=8)
masks = st.builds(Mask, st.sampled_from(["*", "\u2022"]), st.integers(0, 4), st.integers(0, 4))


@given(texts, masks)
def test_a_column_becomes_what_each_of_its_values_becomes(texts: list[str], mask: Mask) -> None:
    together = mask.apply([text.encode() for text in texts]).values
    assert list(together) == [by_definition(mask, text).encode() for text in texts]

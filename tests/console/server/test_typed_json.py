"""JSON of requests into dataclasses, and their schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from pgsluice.console.server.problem import Problem
from pgsluice.console.server.typed_json import Json, parse, parse_query, schema


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    number: int
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    colour: Colour
    inner: Inner
    several: tuple[Inner, ...] = ()
    named: Mapping[str, int] | None = None
    switch: bool = False
    anything: Json = None


def test_what_fits_is_taken() -> None:
    content = {"name": "n", "colour": "red", "inner": {"number": 1, "share": 2}, "several": [{"number": 3}], "named": {"a": 1}}
    assert parse(Outer, content) == Outer("n", Colour.RED, Inner(1, 2.0), (Inner(3),), {"a": 1})


@pytest.mark.parametrize(
    ("change", "where", "detail"),
    [
        ({"name": 1}, "name", "name is not a string"),
        ({"colour": "green"}, "colour", "colour is not one of red, blue"),
        ({"colour": ["red"]}, "colour", "colour is not one of"),
        ({"inner": {"number": True}}, "inner.number", "inner.number is not an integer"),
        ({"inner": {"number": 2**70}}, "inner.number", "inner.number is not an integer"),
        ({"inner": {}}, "inner.number", "inner.number is missing"),
        ({"inner": None}, "inner", "inner is not a JSON object"),
        ({"several": [{"number": 1}, {"number": "1"}]}, "several[1].number", "several[1].number is not an integer"),
        ({"named": {"a": None}}, "named.a", "named.a is not an integer"),
        ({"nmae": "n"}, "nmae", "nmae is not known"),
        ({"switch": 1}, "switch", "switch is not a boolean"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(change: dict[str, Any], where: str, detail: str) -> None:
    with pytest.raises(Problem) as refused:
        parse(Outer, {"name": "n", "colour": "red", "inner": {"number": 1}} | change)
    assert (refused.value.content.where, refused.value.content.status) == (where, 422)
    assert detail in refused.value.content.detail


@dataclass(frozen=True, slots=True)
class Query:
    limit: int = 10
    share: float | None = None
    switch: bool = False
    names: tuple[str, ...] = ()


def test_parameters_of_a_url_are_texts() -> None:
    assert parse_query(Query, {"limit": "3", "share": "1.5", "switch": "true", "names": "a,b"}) == Query(3, 1.5, True, ("a", "b"))
    for name, text in (("limit", "x"), ("limit", "٣"), ("switch", "yes"), ("unknown", "1")):
        with pytest.raises(Problem):
            parse_query(Query, {name: text})


def test_the_schema_says_what_is_taken() -> None:
    definitions: dict[str, Any] = {}
    assert schema(Outer, definitions) == {"$ref": "#/components/schemas/Outer"}
    assert definitions["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert definitions["Outer"]["required"] == ["colour", "inner", "name"]
    assert definitions["Outer"]["additionalProperties"] is False
    assert definitions["Inner"]["properties"]["share"] == {"type": "number"}

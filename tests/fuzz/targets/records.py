"""Records of the state bucket and the control bucket: each type that the product reads is fed, and what some of them hold packed.

The sources say which types these are: a type that new code reads is fuzzed without further work.
"""

from __future__ import annotations

import ast
import base64
import enum
import importlib
import re
import types
import zlib
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pgsluice.replicator.membership.membership import _PublicationRecord, load_membership
from pgsluice.shared.broker.bucket import Entry, StateBucket
from pgsluice.shared.broker.definition_log import DefinitionLogRecord, OutcomesRecord, load_log, load_outcomes
from pgsluice.shared.broker.published_tables import PublishedTables, load_tables
from pgsluice.shared.broker.record import LsnText, MalformedError, R, Record, TimeText, decode, encode
from pgsluice.shared.errors import TerminalError
from tests.fuzz.target import is_same, read
from tests.source_code import PRODUCT, nodes, relative, sources

_READERS = {"read", "read_history", "change", "decode", "of_fields", "DocumentStore"}
"""Functions that get the type of a record by its name."""
_MAY_READ = re.compile(rf"\b(?:{'|'.join(_READERS)})\([^\n]*\b_?[A-Z][a-z]")
"""A call in files that are worth being parsed."""

T = TypeVar("T")


def _record_types() -> tuple[type[Record], ...]:
    found: dict[str, type[Record]] = {}
    for path in sources(*PRODUCT):
        if _MAY_READ.search(path.read_text()) is None:
            continue
        calls = [node for node in nodes(path, ast.Call) if _called(node) in _READERS]
        names = {argument.id for call in calls for argument in call.args if isinstance(argument, ast.Name)}
        for name in sorted(name for name in names if name.strip("_")[:1].isupper() and not name.isupper()):
            module = importlib.import_module("pgsluice." + relative(path).removesuffix(".py").replace("/", "."))
            kind = getattr(module, name, None)
            if isinstance(kind, type) and is_dataclass(kind):
                found[name] = kind
    return tuple(found[name] for name in sorted(found))


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


RECORD_TYPES = _record_types()


def feed(data: bytes) -> None:
    for kind in RECORD_TYPES:
        record = read(lambda kind=kind: decode(kind, data), MalformedError)  # type: ignore[misc]
        if record is not None:
            is_same(record, decode(kind, encode(record)))
    packed = base64.b64encode(zlib.compress(data, 1)).decode()
    read(lambda: _answer(load_tables(_OneRecord(PublishedTables((), packed)))), TerminalError)
    read(lambda: _answer(load_log(_OneRecord(DefinitionLogRecord("", packed, (0, ""), (0, ""))))), TerminalError)
    read(lambda: _answer(load_outcomes(_OneRecord(OutcomesRecord("", packed)), "w")), TerminalError)
    read(lambda: _answer(load_membership(_OneRecord(_PublicationRecord("p", 1, "", packed)))), TerminalError)


class _OneRecord(StateBucket):
    """A bucket of no server, which holds one record under whatever key."""

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def described(self) -> str:
        return "the bucket"

    async def read(self, key: str, record: type[R]) -> Entry[R]:
        return Entry(self._record, 1)


def _answer(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns what the coroutine returns; it waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


def seeds() -> Iterator[bytes]:
    for kind in RECORD_TYPES:
        yield encode(_example(kind))
    yield b'[["0/7:1", "2026-01-01T00:00:00+00:00", "ALTER TABLE", 7, "public.t", ["renamed"]]]'
    yield b'[["0/7:1", ["applied"], "2026-01-01T00:00:00+00:00"]]'


def _example(kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind == LsnText:
        return "16/B374D848"
    if kind == TimeText:
        return "2026-01-31T09:15:00+00:00"
    if origin is Annotated:
        return _example(arguments[0])
    if origin in (Union, types.UnionType):
        return _example(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return tuple(map(_example, arguments[:1] if arguments[-1] is Ellipsis else arguments))
    if origin is Mapping:
        return {"a": _example(arguments[1])}
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {each.name: _example(hints[each.name]) for each in fields(kind)}
    if isinstance(kind, enum.EnumMeta):
        return next(iter(kind))
    return {str: "text", int: 7, float: 0.5, bool: True}.get(kind, "anything")

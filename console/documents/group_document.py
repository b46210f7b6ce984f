"""What a group is to be: its configuration file as a record, with secrets as references alone.

The same YAML serves every command of the group; as a document it is in the broker, with a history. What is written in it is kept
as it was written: ``${NAME}`` stays a reference, for whoever runs the group to resolve. A secret that is written out is refused,
and not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import orjson

from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.config.file import ConfigFile, parse_config_file
from pgsluice.shared.config.kinds import Kind, Raw
from pgsluice.shared.config.load import all_in_one, unknown_keys
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames, check_worker_name
from pgsluice.worker.sinks.sink_registry import SINKS, is_sink_class

WORKERS = "workers"

_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")
"""To a variable. A default would be written out, so none but an empty one."""
_SECRET_NAME = re.compile(
    r"secret|passw|token|credential|authori[sz]ation|\bkey\b|access[._-]?key|api[._-]?key|cookie", re.IGNORECASE
)
"""Of a header, a Spark setting or a sink's option, whose names are not ours."""


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """``settings`` are options by name: a text, a list of texts or named texts, as the file has them. ``applied_by`` is for
    people."""

    group: str
    settings: Mapping[str, object] = field(repr=False)
    applied_at: TimeText = ""
    applied_by: str = ""

    KEY_PREFIX: ClassVar[str] = "group."
    MALFORMED_REMEDY: ClassVar[str] = "apply the document again, or delete it"

    @property
    def name(self) -> str:
        return self.group

    def stamped(self, at: str, by: str) -> GroupDocument:
        return replace(self, applied_at=at, applied_by=by)

    def raw(self, name: str) -> Raw | None:
        """What is written of an option; None for nothing."""
        value = self.settings.get(name)
        match value:
            case str():
                return value
            case list() | tuple():
                return tuple(map(str, value))
            case dict():
                return {str(key): str(text) for key, text in value.items()}
            case _:
                return None


def parse_document(place: str, text: str, known: Mapping[str, Option]) -> GroupDocument:
    """The document that YAML says; ``place`` names it. Raises UsageError with all that is wrong with it, and no value."""
    file = parse_config_file(place, text)
    problems = [*file.problems, *_problems(file, known)]
    group = file.entries.get("group")
    if group is None or not isinstance(group.raw, str):
        problems.append(UsageError(f"{place} names no group", "write 'group: orders'"))
    else:
        try:
            GroupNames(group.raw)
        except UsageError as error:
            problems.append(error)
    if problems:
        raise all_in_one(problems)
    assert group is not None
    assert isinstance(group.raw, str)
    settings = {name: _plain(entry.raw) for name, entry in file.entries.items() if entry.raw is not None}
    return GroupDocument(group.raw, settings)


def worker_entries(raw: Raw | None) -> list[tuple[str, str]]:
    """Name and kind of sink of each that ``workers`` lists: an entry is a kind, or ``name=kind``."""
    entries = (raw,) if isinstance(raw, str) else raw if isinstance(raw, tuple) else ()
    parts = [entry.partition("=") for entry in entries]
    return [(name, kind if equals else name) for name, equals, kind in parts]


def format_document(document: GroupDocument) -> str:
    """YAML that ``parse_document`` takes, the group first and the rest by name."""
    names = sorted(document.settings.keys() - {"group"})
    return "".join(f"{name}: {format_raw(document.raw(name))}\n" for name in ["group", *names])


def format_raw(raw: Raw | None) -> str:
    """As YAML in one line, which JSON is too; "" for nothing."""
    return "" if raw is None else orjson.dumps(raw).decode()


def _plain(raw: Raw | None) -> object:
    """As JSON keeps it."""
    return orjson.loads(orjson.dumps(raw))


def _problems(file: ConfigFile, known: Mapping[str, Option]) -> Iterator[UsageError]:
    yield from unknown_keys(file, known.values())
    if WORKERS in file.entries:
        yield from _worker_problems(worker_entries(file.entries[WORKERS].raw))
    for name, entry in file.entries.items():
        option = known.get(name)
        if option is not None and entry.raw is not None and _holds_secret(option, entry.raw):
            another = f", or give {name}-file" if f"{name}-file" in known else ""
            yield UsageError(
                f"{file.path}, line {entry.line}: {name} holds a secret that is written out",
                f"write a reference like ${{{option.variable}}}{another}: documents are kept and shown",
            )


def _worker_problems(entries: Sequence[tuple[str, str]]) -> Iterator[UsageError]:
    """Of those that could never run."""
    names = [name for name, _ in entries]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield UsageError(f"{WORKERS} names {name!r} twice", "give each worker a name of its own, as in lake=file")
    for name, kind in entries:
        try:
            check_worker_name(name)
        except UsageError as error:
            yield error
        if kind not in SINKS and not is_sink_class(kind):
            yield UsageError(
                f"{WORKERS} names the sink {kind!r}, which there is not", f"there are {', '.join(SINKS)}, and module:Class"
            )


def _holds_secret(option: Option, raw: Raw) -> bool:
    """Whatever may be one and is written out. NATS servers may hold a login, and mostly do not."""
    match raw:
        case str() if option.kind is Kind.SERVERS:
            return any(map(_has_login, raw.split(",")))
        case str():
            return option.secret and not _is_reference(raw)
        case tuple() if option.kind is Kind.SERVERS:
            return any(map(_has_login, raw))
        case tuple():
            return option.secret and not all(map(_is_reference, raw))
        case _:
            return any((option.secret or _SECRET_NAME.search(name)) and not _is_reference(text) for name, text in raw.items())


def _is_reference(text: str) -> bool:
    """A scheme of authentication may stand before it: ``Bearer ${TOKEN}``."""
    return _REFERENCE.fullmatch(text.strip().removeprefix("Bearer ").removeprefix("Basic ").strip()) is not None


def _has_login(url: str) -> bool:
    identity, at, _ = url.rpartition("@")
    return bool(at) and not all(map(_is_reference, filter(None, identity.rpartition("://")[2].split(":"))))

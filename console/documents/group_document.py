"""A group's desired configuration: its configuration file as a record, with secrets only as references.

The same YAML serves every command of the group; as a document it is in the broker, with a history. Its text is kept
unchanged: ``${NAME}`` stays a reference, resolved by the process that runs the group. A secret that is written out is
refused, and not repeated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import orjson

from pgsluice.console.flags import known_options
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.config.file import ConfigEntry, ConfigFile, parse_config_file
from pgsluice.shared.config.kinds import Kind, Raw
from pgsluice.shared.config.load import all_in_one, unknown_keys
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.yaml_nodes import OF_STRANGERS
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames, check_worker_name
from pgsluice.worker.sinks.sink_registry import SINKS, is_sink_class

WORKERS = "workers"
MOST_DOCUMENT_BYTES = 64 * 1024
"""The most bytes of one document's text. ``config.example.yaml``, with every option and a remark on each, has 21 KiB."""

_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")
"""A reference to a variable. A default would be written out, so only an empty one is allowed."""
_SECRET_NAME = re.compile(
    r"secret|passw|token|credential|authori[sz]ation|\bkey\b|access[._-]?key|api[._-]?key|cookie", re.IGNORECASE
)
"""Names of headers, Spark settings or custom sinks' options that are probably secret."""

_UNPRINTABLE = re.compile("[^\\t\\n\\x20-\\x7e\\xa0-\\u2027\\u202a-\\ud7ff\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]")
"""Characters that YAML refuses unescaped, or reads as the end of a line."""


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """``settings`` are options by name: a text, a list of texts or named texts, as the file has them. ``applied_by`` is
    for readers."""

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
        """Returns the text of an option; None without one."""
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

    def check(self) -> None:
        """Raises UsageError with all that is wrong, and no value, for what ``parse_document`` would not have made."""
        GroupNames(self.group)
        if self.settings.get("group") != self.group:
            raise UsageError("it is the document of another group", "apply the document of that group")
        entries = {name: ConfigEntry(line, self.raw(name)) for line, name in enumerate(_order(self), 1)}
        unreadable = [name for name, entry in entries.items() if entry.raw is None]
        if unreadable:
            raise UsageError(f"{unreadable[0]!r} is neither a text, a list nor a mapping", "apply the document again")
        known = {option.name: option for option in known_options()}
        problems = list(_problems(ConfigFile(f"the document of group '{self.group}'", entries, ()), known))
        if problems:
            raise all_in_one(problems)


def parse_document(place: str, text: str, known: Mapping[str, Option]) -> GroupDocument:
    """Parses a document in YAML; ``place`` names it. Raises UsageError with all of its errors, and no value."""
    check_size(place, text)
    file = parse_config_file(place, text, OF_STRANGERS)
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
    document = GroupDocument(group.raw, settings)
    check_size(place, format_document(document))
    return document


def check_size(place: str, text: str) -> None:
    """Raises UsageError for the text of a document that is too large."""
    if len(text.encode()) > MOST_DOCUMENT_BYTES:
        raise UsageError(f"{place} has more than {MOST_DOCUMENT_BYTES >> 10} KiB", "write less: patterns in place of long lists")


def worker_entries(raw: Raw | None) -> list[tuple[str, str]]:
    """Returns the name and kind of sink of each worker that ``workers`` lists: an entry is a kind, or ``name=kind``."""
    entries = (raw,) if isinstance(raw, str) else raw if isinstance(raw, tuple) else ()
    parts = [entry.partition("=") for entry in entries]
    return [(name, kind if equals else name) for name, equals, kind in parts]


def format_document(document: GroupDocument) -> str:
    """Formats as YAML that ``parse_document`` takes, the group first and the rest by name."""
    return "".join(f"{name}: {format_raw(document.raw(name))}\n" for name in _order(document))


def _order(document: GroupDocument) -> list[str]:
    return ["group", *sorted(document.settings.keys() - {"group"})]


def format_raw(raw: Raw | None) -> str:
    """Formats as YAML in one line, which JSON is too; "" for nothing."""
    return "" if raw is None else orjson.dumps(raw).decode()


def _plain(raw: Raw | None) -> object:
    """Returns the value as JSON keeps it."""
    return orjson.loads(orjson.dumps(raw))


def _problems(file: ConfigFile, known: Mapping[str, Option]) -> Iterator[UsageError]:
    yield from unknown_keys(file, known.values())
    if WORKERS in file.entries:
        yield from _worker_problems(worker_entries(file.entries[WORKERS].raw))
    for name, entry in file.entries.items():
        option = known.get(name)
        if entry.raw is not None and any(map(_UNPRINTABLE.search, _texts_of(entry.raw))):
            yield UsageError(f"{file.path}, line {entry.line}: {name} holds a character that cannot be written", "remove it")
        if option is not None and entry.raw is not None and _holds_secret(option, entry.raw):
            another = f", or give {name}-file" if f"{name}-file" in known else ""
            yield UsageError(
                f"{file.path}, line {entry.line}: {name} holds a secret that is written out",
                f"write a reference like ${{{option.variable}}}{another}: documents are kept and shown",
            )


def _texts_of(raw: Raw) -> Iterator[str]:
    if isinstance(raw, Mapping):
        yield from raw.keys()
    yield from values_of(raw)


def values_of(raw: Raw) -> Iterator[str]:
    """Yields the values, without the keys of a mapping."""
    match raw:
        case str():
            yield raw
        case tuple():
            yield from raw
        case _:
            yield from raw.values()


def _worker_problems(entries: Sequence[tuple[str, str]]) -> Iterator[UsageError]:
    """Yields problems of workers that could never run."""
    names = [name for name, _ in entries]
    for name in sorted(name for name, count in Counter(names).items() if count > 1):
        yield UsageError(f"{WORKERS} names {name!r} twice", "give each worker a separate name, as in lake=file")
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
    """Returns whether a possible secret is written out. URLs of NATS servers can contain a login, and mostly do not."""
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
    """Returns whether the text is a reference, perhaps after a scheme of authentication: ``Bearer ${TOKEN}``."""
    return _REFERENCE.fullmatch(text.strip().removeprefix("Bearer ").removeprefix("Basic ").strip()) is not None


def _has_login(url: str) -> bool:
    identity, at, _ = url.rpartition("@")
    return bool(at) and not all(map(_is_reference, filter(None, identity.rpartition("://")[2].split(":"))))

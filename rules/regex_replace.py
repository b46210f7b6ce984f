"""The transform ``type: regex``: replaces every match of a pattern.

Patterns are RE2's (as pg_flo's are), whose time grows with the length of the value and with nothing else; Arrow brings RE2 and
applies it to a whole column in one call. What RE2 does not have, references to groups and look-around, is matched by the package
``regex``, which goes back and tries again, and may take for ever: there a time limit for each value ends it.

In the replacement ``$1``, ``${1}``, ``\\1``, ``$name``, ``${name}`` and ``\\g<name>`` are groups, ``$0`` is the whole match,
``$$`` is a dollar, ``\\\\`` a backslash. A number ends with its last digit: ``$1st`` is group 1, followed by "st".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import regex

from pgsluice.rules.orderings import is_searched_as_text
from pgsluice.rules.rule import Transformed
from pgsluice.shared.wire.table import Column

TIME_LIMIT_MS = 100
MOST_TIME_LIMIT_MS = 60_000
"""A task that is with one value for longer would be taken for stuck."""

_GROUP = re.compile(r"\$\$|\\\\|\$\{(\w+)\}|\$(\d+)|\$([A-Za-z_]\w*)|\\(\d+)|\\g<(\w+)>")
_RE2_GROUPS = 9
"""RE2's replacements have no two-digit groups."""

Part = str | int
"""Of a replacement: a text or the number of a group."""


@dataclass(frozen=True, slots=True)
class RegexReplace:
    """Made by ``regex_replace``, which checks pattern and replacement."""

    pattern: str
    parts: tuple[Part, ...]
    time_limit_ms: int
    name: ClassVar[str] = "regex"

    def check_column(self, column: Column) -> None:
        if not is_searched_as_text(column):
            raise ValueError(f"is {column.type_name}, and a pattern needs text")

    def apply(self, values: Sequence[bytes]) -> Transformed:
        if _is_re2(self.pattern, self.parts):
            return Transformed(_replace_in_column(values, self.pattern, _re2_replacement(self.parts)), {})
        return self._apply_one_by_one(values)

    def _apply_one_by_one(self, values: Sequence[bytes]) -> Transformed:
        substitute, replacement, limit_s = _compiled(self.pattern).sub, _replacement(self.parts), self.time_limit_ms / 1000
        replaced: list[bytes] = []
        failures: dict[int, str] = {}
        for index, value in enumerate(values):
            try:
                replaced.append(substitute(replacement, value.decode(), timeout=limit_s).encode())
            except TimeoutError:
                failures[index] = f"the pattern took longer than its limit of {self.time_limit_ms} ms"
                replaced.append(b"")
        return Transformed(replaced, failures)


def regex_replace(pattern: str, replace: str, time_limit_ms: int = TIME_LIMIT_MS) -> RegexReplace:
    """Raises ValueError, with a sentence, when the pattern is none or the replacement names a group that it does not have."""
    if _is_re2(pattern, ()):
        groups = _group_count(pattern)
    else:
        try:
            groups = _compiled(pattern).groups
        except regex.error as error:
            raise ValueError(f"pattern '{pattern}' is not a regular expression ({error})") from None
    parts = tuple(_parts(pattern, replace))
    missing = [part for part in parts if isinstance(part, int) and part > groups]
    if missing:
        raise ValueError(f"replace '{replace}' uses group {missing[0]}, and the pattern has {groups}")
    return RegexReplace(pattern, parts, time_limit_ms)


def _parts(pattern: str, replace: str) -> Iterator[Part]:
    end = 0
    for match in _GROUP.finditer(replace):
        if match.start() > end:
            yield replace[end : match.start()]
        end = match.end()
        group = next(filter(None, match.groups()), None)
        if group is None:
            yield match[0][0]
        else:
            yield int(group) if group.isdigit() else _group_number(pattern, group)
    if end < len(replace):
        yield replace[end:]


def _group_number(pattern: str, name: str) -> int:
    try:
        return int(_compiled(pattern).groupindex[name])
    except (KeyError, regex.error):
        raise ValueError(f"the pattern has no group '{name}' (write '${{1}}{name}' for group 1 and a text behind it)") from None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern:
    return regex.compile(pattern)


@lru_cache(maxsize=256)
def _is_re2(pattern: str, parts: tuple[Part, ...]) -> bool:
    """Whether RE2 can do this."""
    if any(isinstance(part, int) and part > _RE2_GROUPS for part in parts):
        return False
    try:
        _replace_in_column([b""], pattern, "")
    except ValueError:
        return False
    return True


def _group_count(pattern: str) -> int:
    """Of a pattern that RE2 takes. Beyond nine it does not tell, but the package ``regex`` does."""
    for groups in range(_RE2_GROUPS, -1, -1):
        try:
            _replace_in_column([b""], pattern, f"\\{groups}")
        except ValueError:
            continue
        return max(groups, _compiled(pattern).groups) if groups == _RE2_GROUPS else groups
    return 0


def _re2_replacement(parts: Iterable[Part]) -> str:
    return "".join([f"\\{part}" if isinstance(part, int) else part.replace("\\", "\\\\") for part in parts])


def _replacement(parts: Iterable[Part]) -> str:
    """In the spelling of the package ``regex``."""
    return "".join([f"\\g<{part}>" if isinstance(part, int) else part.replace("\\", "\\\\") for part in parts])


def _replace_in_column(values: Sequence[bytes], pattern: str, replacement: str) -> list[bytes]:
    """By RE2. Raises ValueError when it does not take the pattern or the replacement, or when a value is not UTF-8."""
    import pyarrow as pa  # here, because it takes 25 MB and most workers replace nothing
    import pyarrow.compute as pc

    column = pa.array(values, pa.large_binary()).cast(pa.large_string())
    replaced: list[bytes] = pc.replace_substring_regex(column, pattern, replacement).cast(pa.large_binary()).to_pylist()
    return replaced

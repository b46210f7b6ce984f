"""The transform ``type: regex``: replaces every match of a pattern.

Patterns are RE2's (as pg_flo's are), which never goes back and tries again; Arrow brings RE2 and applies it to a whole
column in one call. What RE2 does not have, references to groups and look-around, is matched by the package ``regex``,
which goes back and tries again, and may take unlimited time: there a time limit for each value ends it.

In the replacement ``$1``, ``${1}``, ``\\1``, ``$name``, ``${name}`` and ``\\g<name>`` are groups, ``$0`` is the whole
match, ``$$`` is a dollar, ``\\\\`` a backslash. A number ends with its last digit: ``$1st`` is group 1, followed by
"st".

The new size of a value is bounded (``shared.rows.growth``), and measured before the value is made: RE2 makes it in one
piece, and a process that lacks the memory for that ends at once.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import regex

from pgsluice.rules.bounds import pattern_size
from pgsluice.rules.orderings import is_searched_as_text
from pgsluice.rules.rule import Transformed
from pgsluice.shared.rows.growth import ALLOWANCE_BYTES, MOST_GROWTH, most_bytes
from pgsluice.shared.wire.table import Column

TIME_LIMIT_MS = 100
MOST_TIME_LIMIT_MS = 60_000
"""A task that is with one value for longer would be taken for stuck."""

_GROUP = re.compile(r"\$\$|\\\\|\$\{(\w+)\}|\$(\d+)|\$([A-Za-z_]\w*)|\\(\d+)|\\g<(\w+)>")
_RE2_GROUPS = 9
"""RE2's replacements have no two-digit groups."""

MOST_PATTERN_CHARACTERS = 1000
MOST_PATTERN_SIZE = 1000
MOST_SEARCHED_BYTES = 64 * 1024
"""The most bytes of a value that an untrusted pattern is applied to. If each match has to read all of the rest, RE2
needs the square of the value's length to replace all matches, and nothing interrupts it within a value: at this length
it takes seconds."""

_QUOTED_CHARACTERS = 100
_TOO_LARGE = f"the value would become larger than {MOST_GROWTH} times its size and {ALLOWANCE_BYTES >> 10} KiB"

Part = str | int
"""A part of a replacement: a text or the number of a group."""


@dataclass(frozen=True, slots=True)
class RegexReplace:
    """Made by ``regex_replace``, which checks pattern and replacement. A value of more than ``longest`` bytes is not searched."""

    pattern: str
    parts: tuple[Part, ...]
    time_limit_ms: int
    longest: int = sys.maxsize
    name: ClassVar[str] = "regex"

    def check_column(self, column: Column) -> None:
        if not is_searched_as_text(column):
            raise ValueError(f"is {column.type_name}, and a pattern needs text")

    def apply(self, values: Sequence[bytes]) -> Transformed:
        if not _is_re2(self.pattern, self.parts):
            return self._apply_one_by_one(values)
        limit = min(self.longest, _longest_safe(self.parts))
        failures = self._failures(values) if limit < sys.maxsize and max(map(len, values), default=0) > limit else {}
        if not failures:
            return Transformed(self._replaced(values), {})
        replaced = iter(self._replaced([value for index, value in enumerate(values) if index not in failures]))
        return Transformed([b"" if index in failures else next(replaced) for index in range(len(values))], failures)

    def _replaced(self, values: Sequence[bytes]) -> list[bytes]:
        return _replace_in_column(values, self.pattern, _re2_replacement(self.parts))

    def _failures(self, values: Sequence[bytes]) -> dict[int, str]:
        """Returns the failures in a column that RE2 is to replace in. Raises ValueError when a value is not UTF-8."""
        searched = f"the value has more than {self.longest >> 10} KiB, and these rules apply no pattern to so long a value"
        failures = {index: searched for index, value in enumerate(values) if len(value) > self.longest}
        safe = _longest_safe(self.parts)
        unsafe = [index for index, value in enumerate(values) if len(value) > safe and index not in failures]
        sizes = _sizes_in_column([values[index] for index in unsafe], self.pattern, self.parts)
        for index, size in zip(unsafe, sizes, strict=True):
            if size > most_bytes(len(values[index])):
                failures[index] = _TOO_LARGE
        return failures

    def _apply_one_by_one(self, values: Sequence[bytes]) -> Transformed:
        substitute, replacement, limit_s = _compiled(self.pattern).sub, _replacement(self.parts), self.time_limit_ms / 1000
        longest_safe = _longest_safe(self.parts, is_re2=False)
        replaced: list[bytes] = []
        failures: dict[int, str] = {}
        for index, value in enumerate(values):
            made = replacement if len(value) <= longest_safe else _Expansion(self.parts, most_bytes(len(value)))
            try:
                after = substitute(made, value.decode(), timeout=limit_s).encode()
            except TimeoutError:
                failures[index] = f"the pattern took longer than its limit of {self.time_limit_ms} ms"
            except _TooLargeError:
                failures[index] = _TOO_LARGE
            else:
                if len(after) > most_bytes(len(value)):
                    failures[index] = _TOO_LARGE
            replaced.append(b"" if index in failures else after)
        return Transformed(replaced, failures)


class _TooLargeError(Exception):
    """The replacements of the matches in a value are larger than the value may become."""


class _Expansion:
    """The replacements of the matches in one value, together at most ``most`` characters."""

    def __init__(self, parts: tuple[Part, ...], most: int) -> None:
        self._parts = parts
        self._left = most

    def __call__(self, match: regex.Match[str]) -> str:
        texts = [part if isinstance(part, str) else match[part] or "" for part in self._parts]
        self._left -= sum(map(len, texts))
        if self._left < 0:
            raise _TooLargeError
        return "".join(texts)


def regex_replace(pattern: str, replace: str, time_limit_ms: int = TIME_LIMIT_MS) -> RegexReplace:
    """Raises ValueError, with a sentence, when the pattern is invalid or the replacement names a group that it does not
    have."""
    if _is_re2(pattern, ()):
        groups = _group_count(pattern)
    else:
        try:
            groups = _compiled(pattern).groups
        except (regex.error, RecursionError) as error:
            raise ValueError(f"pattern '{_shortened(pattern)}' is not a regular expression ({error})") from None
    parts = tuple(_parts(pattern, replace))
    missing = [part for part in parts if isinstance(part, int) and part > groups]
    if missing:
        raise ValueError(f"replace '{_shortened(replace)}' uses group {missing[0]}, and the pattern has {groups}")
    return RegexReplace(pattern, parts, time_limit_ms)


def strangers_regex_replace(pattern: str, replace: str, time_limit_ms: int = TIME_LIMIT_MS) -> RegexReplace:
    """Makes the same for a user who is not trusted with the process: the pattern must be one of RE2's and small when it is
    compiled. Raises ValueError."""
    if len(pattern) > MOST_PATTERN_CHARACTERS:
        raise ValueError(f"pattern has {len(pattern)} characters, and {MOST_PATTERN_CHARACTERS} is the most")
    if pattern_size(pattern) > MOST_PATTERN_SIZE:
        raise ValueError(
            f"pattern '{_shortened(pattern)}' is too large with its repetitions written out (repeat less, or shorter groups)"
        )
    if not _is_re2(pattern, ()):
        raise ValueError(f"pattern '{_shortened(pattern)}' is not in RE2's syntax, and only a worker's rules file can use others")
    made = regex_replace(pattern, replace, time_limit_ms)
    if not _is_re2(pattern, made.parts):
        raise ValueError(f"replace '{_shortened(replace)}' uses a group beyond {_RE2_GROUPS}, which RE2 does not have")
    return dataclasses.replace(made, longest=MOST_SEARCHED_BYTES)


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}…"


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
        raise ValueError(f"the pattern has no group '{name}' (write '${{1}}{name}' for group 1 and a text after it)") from None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern:
    return regex.compile(pattern)


@lru_cache(maxsize=256)
def _is_re2(pattern: str, parts: tuple[Part, ...]) -> bool:
    """Returns whether RE2 supports the pattern."""
    if any(isinstance(part, int) and part > _RE2_GROUPS for part in parts):
        return False
    try:
        _replace_in_column([b""], pattern, "")
    except ValueError:
        return False
    return True


def _group_count(pattern: str) -> int:
    """Returns the number of groups of a pattern that RE2 accepts. Beyond nine RE2 does not report it; the package
    ``regex`` does."""
    for groups in range(_RE2_GROUPS, -1, -1):
        try:
            _replace_in_column([b""], pattern, f"\\{groups}")
        except ValueError:
            continue
        return max(groups, _compiled(pattern).groups) if groups == _RE2_GROUPS else groups
    return 0


@lru_cache(maxsize=256)
def _longest_safe(parts: tuple[Part, ...], *, is_re2: bool = True) -> int:
    """Returns the most bytes of a value that cannot become too large, whatever matches. In n bytes there are n + 1 matches at
    most."""
    groups = sum(isinstance(part, int) for part in parts)
    literal = sum(len(part.encode()) for part in parts if isinstance(part, str))
    if literal > ALLOWANCE_BYTES:
        return -1
    if not is_re2:  # groups of look-around can hold the whole value, for each match
        return max((n for n in range(0, 4096, 64) if n + (n + 1) * (literal + groups * n) <= most_bytes(n)), default=-1)
    growth = 1 + groups + literal
    if growth <= MOST_GROWTH:
        return sys.maxsize
    return (ALLOWANCE_BYTES - literal) // (growth - MOST_GROWTH)


def _sizes_in_column(values: Sequence[bytes], pattern: str, parts: tuple[Part, ...]) -> list[int]:
    """Returns the size in bytes that each value becomes, without building more than twice as many bytes as the value
    has. RE2 finds the same matches whatever replaces them: one character in their place adds their number, and a group
    in their place adds its length."""
    kept = list(map(len, _replace_in_column(values, pattern, "")))
    sizes = list(kept)
    for part in set(parts):
        replacement, size = (f"\\{part}", 1) if isinstance(part, int) else ("x", len(part.encode()))
        made = map(len, _replace_in_column(values, pattern, replacement))
        times = size * parts.count(part)
        sizes = [each + times * (after - before) for each, after, before in zip(sizes, made, kept, strict=True)]
    return sizes


def _re2_replacement(parts: Iterable[Part]) -> str:
    return "".join([f"\\{part}" if isinstance(part, int) else part.replace("\\", "\\\\") for part in parts])


def _replacement(parts: Iterable[Part]) -> str:
    """Formats the replacement for the package ``regex``."""
    return "".join([f"\\g<{part}>" if isinstance(part, int) else part.replace("\\", "\\\\") for part in parts])


def _replace_in_column(values: Sequence[bytes], pattern: str, replacement: str) -> list[bytes]:
    """Replaces by RE2. Raises ValueError when it does not accept the pattern or the replacement, or when a value is not
    UTF-8."""
    import pyarrow as pa  # here, because it takes 25 MB and most workers replace nothing
    import pyarrow.compute as pc

    column = pa.array(values, pa.large_binary()).cast(pa.large_string())
    replaced: list[bytes] = pc.replace_substring_regex(column, pattern, replacement).cast(pa.large_binary()).to_pylist()
    return replaced

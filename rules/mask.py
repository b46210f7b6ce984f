"""The transform ``type: mask``: replaces characters, so that the value keeps its length in characters and little else.

A character is a code point of Unicode. The first and the last are kept, or what ``keep_first`` and ``keep_last`` say. A value
that has no more characters than these together is masked whole: none is ever left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from rules.orderings import is_text
from rules.rule import Transformed
from shared.table import Column

_CACHED_LENGTH = 256
"""Longer runs of the mask are made when they are needed."""


@dataclass(frozen=True, slots=True)
class Mask:
    """``mask_char`` takes the place of each hidden character. ``keep_domain``: of an e-mail address only what is before the last
    ``@`` is masked; a value without one is masked like any other."""

    mask_char: str
    keep_first: int = 1
    keep_last: int = 1
    keep_domain: bool = False
    name: ClassVar[str] = "mask"

    def check_column(self, column: Column) -> None:
        if not is_text(column):
            raise ValueError(f"is {column.type_name}, and only text can be masked")

    def apply(self, values: Sequence[bytes]) -> Transformed:
        if self.keep_domain:
            return Transformed([self._masked_address(value) for value in values], {})
        first, last, runs = self.keep_first, self.keep_last, _runs(self.mask_char)
        kept = first + last
        if not b"".join(values).isascii() or max(map(len, values), default=0) >= _CACHED_LENGTH:
            return Transformed([self._masked(value) for value in values], {})
        if last == 0:
            return Transformed(
                [value[:first] + runs[len(value) - first] if len(value) > first else runs[len(value)] for value in values], {}
            )
        return Transformed(
            [
                value[:first] + runs[len(value) - kept] + value[-last:] if len(value) > kept else runs[len(value)]
                for value in values
            ],
            {},
        )

    def _masked_address(self, address: bytes) -> bytes:
        local, at, domain = address.rpartition(b"@")
        return self._masked(local) + at + domain if at else self._masked(address)

    def _masked(self, value: bytes) -> bytes:
        text = value.decode()
        hidden = len(text) - self.keep_first - self.keep_last
        if hidden <= 0:
            return (self.mask_char * len(text)).encode()
        return (text[: self.keep_first] + self.mask_char * hidden + text[len(text) - self.keep_last :]).encode()


@lru_cache(maxsize=64)
def _runs(mask_char: str) -> list[bytes]:
    return [mask_char.encode() * length for length in range(_CACHED_LENGTH)]

"""The transform ``type: mask``: replaces characters, so that the value keeps its length in characters and little else.

A character is a code point of Unicode. The first and the last are kept, or as many as ``keep_first`` and ``keep_last``.
A value that has no more characters than these together is masked whole: none is ever left as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pgsluice.rules.orderings import is_text
from pgsluice.rules.rule import Transformed
from pgsluice.shared.wire.table import Column


@dataclass(frozen=True, slots=True)
class Mask:
    """``mask_char`` takes the place of each hidden character. ``keep_domain``: of an e-mail address only what is before the last
    ``@`` is masked; a value that has nothing before it, or white space after it, is masked like any other."""

    mask_char: str
    keep_first: int = 1
    keep_last: int = 1
    keep_domain: bool = False
    name: ClassVar[str] = "mask"

    def check_column(self, column: Column) -> None:
        if not is_text(column):
            raise ValueError(f"is {column.type_name}, and only text can be masked")

    def apply(self, values: Sequence[bytes]) -> Transformed:
        if not self.keep_domain:
            return Transformed(self._masked_values(values), {})
        ends = list(map(_domain_start, values))
        masked = self._masked_values([value[:end] for value, end in zip(values, ends, strict=True)])
        return Transformed([hidden + value[end:] for hidden, value, end in zip(masked, values, ends, strict=True)], {})

    def _masked_values(self, values: Sequence[bytes]) -> list[bytes]:
        together = b"".join(values)
        if values and together.isascii() and len(self.mask_char.encode()) == 1:
            return self._masked_column(values, together)
        return [self._masked(value) for value in values]

    def _masked_column(self, values: Sequence[bytes], together: bytes) -> list[bytes]:
        """Masks a column whose characters are all single bytes: all values at once, as one text in which the kept
        places are put back."""
        import pyarrow as pa  # here, because it takes 25 MB and most workers mask nothing

        lengths = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(lengths)
        starts = ends - lengths
        long_enough = lengths > self.keep_first + self.keep_last
        clear, hidden = np.frombuffer(together, np.uint8), np.full(len(together), ord(self.mask_char), np.uint8)
        if long_enough.any():  # else what is kept may be more than any value has
            kept = [starts[long_enough] + place for place in range(self.keep_first)]
            kept += [ends[long_enough] - place for place in range(1, self.keep_last + 1)]
            for places in kept:
                hidden[places] = clear[places]
        offsets = np.concatenate((starts[:1], ends))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(hidden)]
        masked: list[bytes] = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers).to_pylist()
        return masked

    def _masked(self, value: bytes) -> bytes:
        text = value.decode()
        hidden = len(text) - self.keep_first - self.keep_last
        if hidden <= 0:
            return (self.mask_char * len(text)).encode()
        return (text[: self.keep_first] + self.mask_char * hidden + text[len(text) - self.keep_last :]).encode()


def _domain_start(value: bytes) -> int:
    """Returns the index of the ``@`` of an address; the value's end when it is no address."""
    at = value.rfind(b"@")
    return at if at > 0 and value[at:].split() == [value[at:]] else len(value)

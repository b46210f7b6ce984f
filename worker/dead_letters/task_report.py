"""A task's report about changes that are not applied, in addition to its receipts."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Any

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.position import Position
from pgsluice.worker.dead_letters.filter import Truncated
from pgsluice.worker.dead_letters.rejection import Rejection

_U32 = Struct(">I")


@dataclass(frozen=True, slots=True)
class TaskReport:
    """``letters`` were taken out. ``rejections`` are from the sink's writer: they were not taken out yet. ``truncated``
    tables need no dead letters from before their truncation."""

    letters: tuple[DeadLetter, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    truncated: tuple[Truncated, ...] = ()

    def encode(self) -> bytes | None:
        """Returns None for an empty report."""
        if not (self.letters or self.rejections or self.truncated):
            return None
        encoded = [letter.encode() for letter in self.letters]
        facts = {
            "letters": list(map(len, encoded)),
            "rejections": [[str(rejection.position), rejection.reason] for rejection in self.rejections],
            "truncated": [[oid, str(position)] for oid, position in self.truncated],
        }
        header = orjson.dumps(facts)
        return b"".join([_U32.pack(len(header)), header, *encoded])

    @classmethod
    def decode(cls, encoded: bytes) -> TaskReport:
        """Raises WireError for bytes that ``encode`` does not make."""
        try:
            start = _U32.size + _U32.unpack_from(encoded)[0]
            facts: dict[str, Any] = orjson.loads(encoded[_U32.size : start])
            letters = []
            for size in facts["letters"]:
                letters.append(DeadLetter.decode(encoded[start : start + size]))
                start += size
            rejections = tuple(Rejection(Position.parse(position), reason) for position, reason in facts["rejections"])
            truncated = tuple((int(oid), Position.parse(position)) for oid, position in facts["truncated"])
        except (struct.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"a task's report of dead letters is malformed ({type(error).__name__})") from None
        return cls(tuple(letters), rejections, truncated)

"""A worker's position in the last message of each unit in the target stream, in the header ``Pgsluice-State``.

{"worker": "orders/nats", "writer": "5f0c…", "at": 7120, "own": ["[…]", "16/B374D848:3", "copy:7:0:12", 2], "replay":
[…]}

The four of a place are the position after the last batch that is complete; the ids of the last messages of changes and
of copied rows that were published beyond it, "" without any: a batch that is begun again continues after them; and how
many units a transaction larger than a unit has by then. ``own`` is the worker's place in the streams, ``replay`` its
replays' place in the stream of dead letters: both write the same stream in turn. ``writer`` names the process. ``at``
is the sequence at which the message was to be stored: in any other place it is a copy, and outdated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from pgsluice.shared.errors import WireError
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Lane

STATE_HEADER = "Pgsluice-State"


@dataclass(frozen=True, slots=True)
class PublishedPlace:
    applied: Applied = NOTHING_APPLIED
    changes: str = ""
    copied: str = ""
    part: int = 0

    def start(self, lane: Lane) -> str:
        """Returns the id of the last message beyond ``applied`` that the stream holds of that lane, "" without one."""
        return self.copied if lane is Lane.COPIED else self.changes

    def part_in(self, lane: Lane) -> int:
        """Returns the number of parts of the open transaction in that lane; 0 for copied rows."""
        return 0 if lane is Lane.COPIED else self.part

    def through(self, message_id: str, lane: Lane, part: int) -> PublishedPlace:
        """Returns the place after the message is published too, which ends a change. Copied rows leave a transaction
        open that they come into."""
        if lane is Lane.COPIED:
            return replace(self, copied=message_id)
        return replace(self, changes=message_id, part=part)

    def at(self, applied: Applied, lane: Lane) -> PublishedPlace:
        """Returns the place after a batch of that lane is complete."""
        return replace(self.through("", lane, 0), applied=applied)

    def encode(self) -> list[str | int]:
        return [self.applied.encode(), self.changes, self.copied, self.part]


NOWHERE = PublishedPlace()


@dataclass(frozen=True, slots=True)
class PublishedState:
    worker: str
    writer: str
    own: PublishedPlace = NOWHERE
    replay: PublishedPlace = NOWHERE
    at: int = 0
    """0 if unknown, as from earlier versions."""

    def place(self, *, is_replay: bool) -> PublishedPlace:
        return self.replay if is_replay else self.own

    def moved(self, place: PublishedPlace, *, is_replay: bool) -> PublishedState:
        return replace(self, replay=place) if is_replay else replace(self, own=place)

    def encode(self, at: int) -> bytes:
        places = {"own": self.own.encode(), "replay": self.replay.encode()}
        return orjson.dumps({"worker": self.worker, "writer": self.writer, "at": at} | places)

    @classmethod
    def decode(cls, headers: Mapping[str, str]) -> PublishedState | None:
        """Returns None without the header. Raises WireError for one that ``encode`` never produces."""
        text = headers.get(STATE_HEADER)
        if text is None:
            return None
        try:
            content = orjson.loads(text)
            own, replay = (PublishedPlace(Applied.decode(each[0]), *each[1:]) for each in (content["own"], content["replay"]))
            return cls(content["worker"], content["writer"], own, replay, int(content.get("at", 0)))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise WireError(f"the header {STATE_HEADER} of a message is malformed ({type(error).__name__})") from None

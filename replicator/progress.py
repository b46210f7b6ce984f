"""What may be confirmed to the slot: pure, no I/O.

Two kinds of LSN may be confirmed. The end of a commit, once JetStream acknowledged every message up to it: then the stream
itself remembers. And a place in the WAL up to which the source had nothing for us (an idle publication beside a busy
database): the stream knows nothing of it, so it is confirmed only after it was recorded in the state bucket, or a later start
could not tell an idle source from a broker that lost messages. What is confirmed never moves back.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pgsluice.shared.wire.lsn import LSN


class _Mark(NamedTuple):
    """``lsn`` may be confirmed when messages up to ``sequence`` are acknowledged."""

    sequence: int
    lsn: LSN
    in_stream: bool


class Progress:
    """``confirmed`` is where the slot is, ``sequence`` that of the stream's last message, at the start of the session.
    Nothing later is confirmed before the server has shown that it has it."""

    def __init__(self, confirmed: LSN, sequence: int) -> None:
        self._marks: deque[_Mark] = deque()
        self._published_sequence = self._acknowledged_sequence = sequence
        self._confirmed = confirmed
        self._recordable = confirmed
        self.received = confirmed
        """The newest WAL end the server told."""

    @property
    def confirmed(self) -> LSN:
        """The highest LSN that the slot may be told to forget."""
        return self._confirmed

    @property
    def recordable(self) -> LSN:
        """The highest LSN that may be recorded as done; at least ``confirmed``."""
        return max(self._recordable, self._confirmed)

    @property
    def acknowledged_sequence(self) -> int:
        return self._acknowledged_sequence

    @property
    def is_all_acknowledged(self) -> bool:
        return self._acknowledged_sequence >= self._published_sequence

    def published(self, sequence: int, flushed: LSN) -> None:
        """A message was handed to the publisher; ``sequence`` is that of its last chunk, ``flushed`` its header."""
        self._published_sequence = sequence
        self._mark(_Mark(sequence, flushed, in_stream=True))

    def caught_up(self, lsn: LSN) -> None:
        """Whatever the source has for us below ``lsn`` is in messages handed to the publisher."""
        if self._marks and self._marks[-1].sequence == self._published_sequence and not self._marks[-1].in_stream:
            self._marks.pop()
        self._mark(_Mark(self._published_sequence, lsn, in_stream=False))

    def acknowledged(self, sequence: int) -> None:
        """JetStream holds every message up to ``sequence``."""
        self._acknowledged_sequence = max(self._acknowledged_sequence, sequence)
        self._settle_marks()

    def recorded(self, lsn: LSN) -> None:
        """``lsn``, a former ``recordable``, is durable in the state bucket."""
        self._confirmed = max(self._confirmed, lsn)

    def _mark(self, mark: _Mark) -> None:
        self._marks.append(mark)
        self._settle_marks()

    def _settle_marks(self) -> None:
        while self._marks and self._marks[0].sequence <= self._acknowledged_sequence:
            mark = self._marks.popleft()
            if mark.in_stream:
                self._confirmed = max(self._confirmed, mark.lsn)
            else:
                self._recordable = max(self._recordable, mark.lsn)

"""Every exception the program raises on purpose.

    PgsluiceError
    ├── UsageError          2   the configuration or the command line is wrong
    ├── TerminalError      70   a person is needed; trying again cannot help
    │   ├── WireError           bytes that are not what the format says
    │   ├── MissingPrivilegeError  our role or user may not do it there
    │   ├── TableChangedError   a table of the source is gone, or another has its name by now
    │   ├── HistoryError        source, stream and sink do not share one history
    │   ├── RefusedDefinitionError  the destination refused what the source did to a table
    │   ├── MissingMessagesError  messages are gone that were to be read
    │   ├── ConsumerGoneError  75   nobody reads our standard output any more
    │   ├── SinkBehindError    75   the sink is behind where it was, as after a failover
    │   ├── SlotTimeoutError   75   transactions of the source stay open for longer than a new slot is waited for
    │   ├── LoginRefusedError  75   a server has refused our login for as long as one waits for a new password
    │   └── TaskEndedError     75   a task in the background has ended that the process cannot be without
    └── TransientError     75   the same call may succeed later
        ├── OverloadError       a server has too much to do, or no answer in time: it may take less at once
        ├── LockTimeoutError    a lock at the source was not to be had for now
        ├── StreamBehindError   the stream of changes ends before what is applied
        └── SnapshotGoneError   the source no longer shows the snapshot that a copy reads; a new one is needed

An error states the fact, the thing and the way out. It never holds a row value or a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

START_AGAIN = "run 'pgsluice drop' and start again with an empty target"
"""The way out where what was published no longer fits what is there."""


class PgsluiceError(Exception):
    """``fact`` says what is the case and of what; ``remedy`` says what the reader can do; ``statements`` are the SQL of it, to be
    run as it stands by who may. ``exit_code`` is the process's."""

    exit_code = 70

    def __init__(self, fact: str, remedy: str = "", *, statements: Sequence[str] = ()) -> None:
        super().__init__(fact, remedy)
        self.fact = fact
        self.remedy = remedy
        self.statements = tuple(statements)

    def __str__(self) -> str:
        return f"{self.fact}: {self.remedy}" if self.remedy else self.fact


class UsageError(PgsluiceError):
    """The configuration or the command line is wrong: exit 2."""

    exit_code = 2


class TerminalError(PgsluiceError):
    """A person is needed: exit 70."""

    exit_code = 70


class WireError(TerminalError):
    """Bytes that are not what the format says."""


class MissingPrivilegeError(TerminalError):
    """Our role or user may not do there what was tried: somebody has to give it the right, or to do it."""


class TableChangedError(TerminalError):
    """A table of the source is not what it was when it was looked up: it is gone, or has another name by now."""


class HistoryError(TerminalError):
    """What source, stream and sink remember cannot be one history, as after a failover, a rollback or a broker that lost
    messages. Going on would lose rows in silence, now and later: it must not pass by itself."""


class MissingMessagesError(TerminalError):
    """Messages of a stream are gone that were to be read: nothing that was in them can be had. ``next_sequence`` is that of the
    first message that is there."""

    def __init__(self, fact: str, remedy: str = "", next_sequence: int = 0) -> None:
        super().__init__(fact, remedy)
        self.next_sequence = next_sequence


class ConsumerGoneError(TerminalError):
    """Nobody reads our standard output any more. This process cannot go on; one with a new reader can: exit 75."""

    exit_code = 75


class SinkBehindError(TerminalError):
    """The sink's position is one that it had before, and so is its data. This process read on from a later one; a new one goes
    on from where the sink is: exit 75."""

    exit_code = 75


class SlotTimeoutError(TerminalError):
    """A new slot needs the end of transactions that stay open for too long. This process gives up; a later one may have more
    luck: exit 75."""

    exit_code = 75


class LoginRefusedError(TerminalError):
    """Source or target refuses our login, and did so for longer than a password takes to be the same on both sides. A new process
    reads all secrets again, those of its environment too: exit 75."""

    exit_code = 75


class TaskEndedError(TerminalError):
    """A task in the background has ended that was to run as long as its process. Without it that would only look alive; a new
    process has all of them again: exit 75."""

    exit_code = 75


class Cause(StrEnum):
    """What a passing failure is about, for metrics and for people; a closed set, whatever the sentence says.

    SOURCE, TARGET and NATS: it does not answer, or lost what it had. TARGET is whatever a sink writes to. LOCK: somebody else
    holds what is needed, a lock, a slot or a lease."""

    SOURCE = "source"
    TARGET = "target"
    NATS = "nats"
    STREAM_FULL = "stream_full"
    LOCK = "lock"
    DISK_FULL = "disk_full"
    THROTTLED = "throttled"
    SPARK = "spark"
    OTHER = "other"


class TransientError(PgsluiceError):
    """The same call may succeed later: exit 75 when the program gives up. ``cause`` says what has to become better."""

    exit_code = 75
    usual_cause = Cause.OTHER
    """Where none is given."""

    def __init__(self, fact: str, remedy: str = "", cause: Cause | None = None, *, statements: Sequence[str] = ()) -> None:
        super().__init__(fact, remedy, statements=statements)
        self.cause = self.usual_cause if cause is None else cause


class OverloadError(TransientError):
    """A server gave no answer to a request that reached it, or said that it has too much to do. It may take less at once."""

    usual_cause = Cause.TARGET


class LockTimeoutError(TransientError):
    """A lock at the source was not to be had for now: somebody's transaction holds it."""

    usual_cause = Cause.LOCK


class StreamBehindError(TransientError):
    """The stream of changes ends before what is applied: it lost messages, which the replicator may be publishing again."""

    usual_cause = Cause.NATS


class SnapshotGoneError(TransientError):
    """The source no longer shows the snapshot that a copy reads: the unfinished tables need a new one."""

    usual_cause = Cause.SOURCE

"""Every exception the program raises on purpose.

    PgsluiceError
    ├── UsageError          2   the configuration or the command line is wrong
    ├── TerminalError      70   an operator must act; trying again cannot help
    │   ├── WireError           bytes that do not match the format
    │   ├── MissingPrivilegeError  the role or user lacks the permission
    │   ├── TableChangedError   a table of the source is gone, or another has its name now
    │   ├── HistoryError        source, stream and sink do not share one history
    │   ├── RefusedDefinitionError  the destination refused what the source did to a table
    │   ├── MissingMessagesError  messages are gone that were to be read
    │   ├── ConsumerGoneError  75   standard output has no reader any more
    │   ├── SinkBehindError    75   the sink is at an earlier position, as after a failover
    │   ├── SlotTimeoutError   75   transactions of the source stay open for longer than a new slot is waited for
    │   ├── LoginRefusedError  75   a server has refused the login for as long as one waits for a new password
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
"""The remedy if the published data no longer fits existing rows."""

USE_THE_NEWER_VERSION = "a newer pgsluice wrote it, and an older one would misread it: install that version again"
"""The way out of a downgrade."""


class PgsluiceError(Exception):
    """``fact`` states the fact and the object; ``remedy`` is what the reader can do; ``statements`` are its SQL, to be
    run unchanged by a user with the permission. ``exit_code`` is the process's."""

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
    """An operator must act: exit 70."""

    exit_code = 70


class WireError(TerminalError):
    """Bytes that do not match the format."""


class MissingPrivilegeError(TerminalError):
    """The role or user may not do what was tried: an administrator has to grant the permission, or to do it."""


class TableChangedError(TerminalError):
    """A table of the source is not what it was when it was looked up: it is gone, or has another name by now."""


class HistoryError(TerminalError):
    """The positions of source, stream and sink contradict each other, as after a failover, a rollback or a broker that
    lost messages. To continue would lose rows silently, now and later: the error must not resolve on its own."""


class MissingMessagesError(TerminalError):
    """Messages of a stream are gone that were still needed: their content is lost. ``next_sequence`` is the first
    existing message's."""

    def __init__(self, fact: str, remedy: str = "", next_sequence: int = 0) -> None:
        super().__init__(fact, remedy)
        self.next_sequence = next_sequence


class ConsumerGoneError(TerminalError):
    """Standard output has no reader any more. This process cannot continue; one with a new reader can: exit 75."""

    exit_code = 75


class SinkBehindError(TerminalError):
    """The sink's position is one that it had before, and so is its data. This process read on from a later one; a new
    one continues from the sink's position: exit 75."""

    exit_code = 75


class SlotTimeoutError(TerminalError):
    """A new slot needs the end of transactions that stay open for too long. This process ends; a later one may succeed:
    exit 75."""

    exit_code = 75


class LoginRefusedError(TerminalError):
    """Source or target refuses the login, and did so for longer than a password takes to be the same on both sides. A
    new process reads all secrets again, those of its environment too: exit 75."""

    exit_code = 75


class TaskEndedError(TerminalError):
    """A background task has ended that must run as long as its process. Without it the process would seem to live; a
    new process has all tasks again: exit 75."""

    exit_code = 75


class Cause(StrEnum):
    """The subject of a transient failure, for metrics and readers; a closed set, independent of the message.

    SOURCE, TARGET and NATS: it does not answer, or lost data. TARGET is any sink's destination. LOCK: another client
    holds what is needed, a lock, a slot or a lease.
    """

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
    """A call that may succeed later: exit 75 when the program stops retrying. ``cause`` is what has to recover."""

    exit_code = 75
    usual_cause = Cause.OTHER
    """Cause if none is given."""

    def __init__(self, fact: str, remedy: str = "", cause: Cause | None = None, *, statements: Sequence[str] = ()) -> None:
        super().__init__(fact, remedy, statements=statements)
        self.cause = self.usual_cause if cause is None else cause


class OverloadError(TransientError):
    """A server gave no answer to a request that reached it, or answered that it is overloaded. It may accept less at
    once."""

    usual_cause = Cause.TARGET


class LockTimeoutError(TransientError):
    """A lock at the source is not available now: another transaction holds it."""

    usual_cause = Cause.LOCK


class StreamBehindError(TransientError):
    """The stream of changes ends before what is applied: it lost messages, which the replicator may be publishing again."""

    usual_cause = Cause.NATS


class SnapshotGoneError(TransientError):
    """The source no longer shows the snapshot that a copy reads: the unfinished tables need a new one."""

    usual_cause = Cause.SOURCE

"""Names of a group's objects, in NATS and in Postgres (one place, so that no two modules spell them differently)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgsluice.shared.errors import UsageError

_GROUP = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_WORKER = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")

TARGET_SCHEMA = "pgsluice"
"""Schema of pgsluice's objects in a target database."""

SOURCE_SCHEMA = "pgsluice"
"""Schema of pgsluice's objects in a source database. One database may be both."""

PAD_PREFIX = "pgsluice.pad"
"""Prefix of an empty logical message that follows a definition and keeps it in its place: see
``shared/wire/definition.py``."""

_SLOT_PREFIX = "pgsluice_"
_REPLAY_SUFFIX = ".replay"


def is_group(name: str) -> bool:
    """Returns whether a group may have the name."""
    return _GROUP.fullmatch(name) is not None


def replay_name(worker: str) -> str:
    """Returns the name under which a worker applies its dead letters again. No worker has such a name: a name has no
    dot."""
    return worker + _REPLAY_SUFFIX


def replayed_worker(name: str) -> str:
    """Returns the worker that replays under this name, or has it itself."""
    return name.removesuffix(_REPLAY_SUFFIX)


@dataclass(frozen=True, slots=True)
class GroupNames:
    """All names of one group. ``group`` is the spelling the user chose; ``-`` becomes ``_`` in Postgres names only.
    ``chosen_publication`` is one that an administrator made, "" for the group's own."""

    group: str
    chosen_publication: str = ""

    def __post_init__(self) -> None:
        if not is_group(self.group):
            raise UsageError(
                f"group {self.group!r} is not a valid name",
                "use 1 to 40 characters, a-z, 0-9, '_' and '-', beginning with a-z or 0-9, like 'orders'",
            )

    @property
    def publication(self) -> str:
        return self.chosen_publication or self.slot

    @property
    def slot(self) -> str:
        return _SLOT_PREFIX + self.group.replace("-", "_")

    @property
    def definitions_prefix(self) -> str:
        """Prefix of the logical messages about definitions."""
        return f"pgsluice.ddl.{self.group}"

    def in_source(self, noun: str) -> str:
        """Returns the name of a function or table of SOURCE_SCHEMA that captures definitions. ``noun`` is one word
        without ``_``, so that the names of two groups never collide."""
        return f"{noun}_{self.slot.removeprefix(_SLOT_PREFIX)}"

    def event_trigger(self, noun: str) -> str:
        """Returns the name of an event trigger, which has no schema."""
        return f"{self.slot}_{noun}"

    @property
    def changes_stream(self) -> str:
        return f"pgsluice_{self.group}_changes"

    @property
    def changes_subject(self) -> str:
        return f"pgsluice.{self.group}.changes"

    @property
    def bell_subject(self) -> str:
        """Subject on which the replicator wakes workers that wait for changes. In no stream."""
        return f"pgsluice.{self.group}.bell"

    def steps_subject(self, worker: str) -> str:
        """Returns the subject on which tasks report progress to the driver of that worker. In no stream."""
        return f"pgsluice.{self.group}.steps.{worker}"

    @property
    def snapshot_stream(self) -> str:
        return f"pgsluice_{self.group}_snapshot"

    @property
    def snapshot_subjects(self) -> str:
        """Every subject of the snapshot stream."""
        return f"pgsluice.{self.group}.snapshot.>"

    def snapshot_begin_subject(self, snapshot: str, oid: int | str) -> str:
        """Returns the subject of the message that begins a snapshot's copy of a table. ``*`` matches any snapshot or
        table."""
        return f"pgsluice.{self.group}.snapshot.{snapshot}.{oid}.begin"

    def snapshot_range_subject(self, snapshot: str, oid: int, number: int) -> str:
        """Returns the subject of the rows of one page range, in order."""
        return f"pgsluice.{self.group}.snapshot.{snapshot}.{oid}.{number}"

    @property
    def dead_stream(self) -> str:
        return f"pgsluice_{self.group}_dead"

    @property
    def dead_subjects(self) -> str:
        """Every subject of the dead-letter stream."""
        return f"pgsluice.{self.group}.dead.>"

    def dead_subject(self, worker: str) -> str:
        """Returns the subject of the dead letters of one worker."""
        return f"pgsluice.{self.group}.dead.{worker}"

    def replay_subject(self, worker: str) -> str:
        """Returns the subject of requests that the worker applies dead letters again."""
        return f"{self.dead_subject(worker)}.replay"

    def applying_subject(self, worker: str) -> str:
        """Returns the subject of the worker's notes about the sequence in which it applies them."""
        return f"{self.dead_subject(worker)}.applying"

    @property
    def bucket(self) -> str:
        return f"pgsluice_{self.group}"


def check_worker_name(name: str) -> str:
    """Returns ``name`` itself; raises UsageError when it cannot be part of a subject and of a table name."""
    if _WORKER.fullmatch(name) is None:
        raise UsageError(
            f"worker name {name!r} is not valid",
            "use 1 to 40 characters, a-z, 0-9, '_' and '-', beginning with a-z or 0-9, like 'postgres'",
        )
    return name

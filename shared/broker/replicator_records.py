"""The replicator's records about its group in the state bucket: what the group is bound to, and its progress."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.shared.broker.record import LsnText, TimeText

GROUP_KEY = "group"
REPLICATOR_KEY = "replicator"

ANY_ORIGIN = "any"
"""Like the subscription option ``origin`` of PostgreSQL: streams changes of every origin."""

_BY_WORKER = "worker "


def publication_of_worker(worker: str) -> str:
    """Returns the text stored instead of a publication, if a worker publishes the group; ``worker`` is its group, a
    slash and its name."""
    return _BY_WORKER + worker


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The facts that must not change between two starts. ``slot_lsn`` is where the slot began, "" until it was made;
    ``publication_oid`` is the publication's identity. ``origin`` names the origins whose changes are in the stream."""

    group: str
    system_id: str
    timeline: int
    database: str
    publication: str
    publication_oid: int
    slot: str
    slot_lsn: LsnText
    created_at: TimeText
    origin: str = ANY_ORIGIN

    @property
    def publishing_worker(self) -> tuple[str, str] | None:
        """Group and name of the worker that publishes this group; None when a replicator does."""
        if self.publication_oid or not self.publication.startswith(_BY_WORKER):
            return None
        group, _, worker = self.publication.removeprefix(_BY_WORKER).partition("/")
        return group, worker


@dataclass(frozen=True, slots=True)
class ReplicatorRecord:
    """The replicator's progress. All fields are for readers. The next start depends on three: ``flushed_lsn`` (the slot
    is never confirmed beyond what the stream or this record shows), ``stream_sequence`` (the stream held that much) and
    ``stream_created`` (of which stream)."""

    flushed_lsn: LsnText
    stream_created: str
    stream_sequence: int
    received_lsn: LsnText = ""
    messages: int = 0
    changes: int = 0
    body_bytes: int = 0
    started_at: TimeText = ""
    host: str = ""
    pid: int = 0
    updated_at: TimeText = ""

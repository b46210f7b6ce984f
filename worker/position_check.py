"""Whether the group's streams still are those that a worker's position counts in."""

from __future__ import annotations

from shared.errors import TerminalError
from shared.jetstream import StreamState
from shared.names import GroupNames
from worker.sinks.sink import Applied


def check_position(names: GroupNames, applied: Applied, stream: StreamState | None) -> None:
    """Raises TerminalError when the stream of changes is not the one ``applied`` counts in, or lost messages that were not
    applied. There is none when the group only copied."""
    if stream is None:
        if applied.sequence:
            raise _lost_messages(names.changes_stream, 0, applied.sequence)
        return
    if applied.stream_created and applied.stream_created != stream.created:
        raise TerminalError(
            f"stream {names.changes_stream} was created anew since this worker last ran ({stream.created})",
            "its sequences mean something else now; drop the group on both sides and copy the tables again",
        )
    _check_sequence(names.changes_stream, applied.sequence, stream)


def check_snapshot_position(names: GroupNames, applied: Applied, stream: StreamState | None) -> None:
    """The same for the snapshot stream, which a group that never copied does not have."""
    if stream is not None:
        _check_sequence(names.snapshot_stream, applied.snapshot_sequence, stream)
    elif applied.snapshot_sequence:
        raise _lost_messages(names.snapshot_stream, 0, applied.snapshot_sequence)


def _check_sequence(name: str, applied: int, stream: StreamState) -> None:
    if applied > stream.last_sequence:
        raise _lost_messages(name, stream.last_sequence, applied)
    if stream.first_sequence > applied + 1:
        raise TerminalError(
            f"stream {name} begins at message {stream.first_sequence}; "
            f"messages {applied + 1} to {stream.first_sequence - 1} were not applied by this worker and are gone",
            "raise --retention for workers that stay away for long; drop the group and copy the tables again",
        )


def _lost_messages(name: str, last_sequence: int, applied: int) -> TerminalError:
    return TerminalError(
        f"stream {name} ends at message {last_sequence}, before what is applied ({applied})",
        "the broker lost messages; restore it, or drop the group and copy the tables again",
    )

"""Permissions that a NATS user needs: exact subjects, of one group or of objects outside groups.

They bound what a user does by mistake, not what it does on purpose: a user that may create or change a stream has it
copy any subject to any other (``republish``), and JetStream's answers go to any subject that a request names. The
boundary is the account.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgsluice.shared.wire.names import GroupNames

EVERYBODYS_INBOX = "_INBOX"

_API = "$JS.API."
_READ = ("STREAM.INFO", "STREAM.MSG.GET")
_MAKE = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE")


@dataclass(frozen=True, slots=True)
class NatsPermissions:
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def __add__(self, other: NatsPermissions) -> NatsPermissions:
        """Returns both, each subject once."""
        return NatsPermissions(
            tuple(dict.fromkeys(self.publish + other.publish)), tuple(dict.fromkeys(self.subscribe + other.subscribe))
        )

    def block(self) -> str:
        """Returns the permissions on one line, as in the configuration of a NATS server."""
        return f"permissions: {{ publish: {_list(self.publish)}, subscribe: {_list(self.subscribe)} }}"

    def lines(self) -> Iterator[str]:
        """Yields the same, one subject on a line."""
        yield "permissions: {"
        for name, subjects in (("publish", self.publish), ("subscribe", self.subscribe)):
            yield f"  {name}: ["
            yield from (f'    "{subject}"' for subject in subjects)
            yield "  ]"
        yield "}"


NO_PERMISSIONS = NatsPermissions((), ())


def own_inbox(inbox_prefix: str, names: GroupNames) -> str:
    """Returns ``inbox_prefix``, or a prefix of the group's own in place of the common one, on which every listener hears all
    answers."""
    return f"{EVERYBODYS_INBOX}_{names.group}" if inbox_prefix == EVERYBODYS_INBOX else inbox_prefix


def client_permissions(inbox_prefix: str) -> NatsPermissions:
    """Returns what every user needs: to receive answers, and to ask what JetStream has for the account."""
    return NatsPermissions((f"{_API}INFO",), (f"{inbox_prefix}.>",))


def group_permissions(names: GroupNames, *, makes: bool) -> NatsPermissions:
    """Returns what a group's replicator and workers, and the commands about the group, need. ``makes``: they create its
    streams and bucket themselves, and may remove them."""
    bucket = f"KV_{names.bucket}"
    streams = (names.changes_stream, names.snapshot_stream, names.dead_stream, bucket)
    operations = (*_READ, "STREAM.PURGE", *(_MAKE if makes else ()))
    asked = [f"{_API}{operation}.{stream}" for operation in operations for stream in streams]
    asked += [f"{_API}DIRECT.GET.{stream}" for stream in streams[:3]]
    asked.append(f"{_API}STREAM.MSG.DELETE.{names.dead_stream}")
    own = (names.changes_subject, names.bell_subject, names.snapshot_subjects, names.dead_subjects)
    told = (*own, names.steps_subject("*"), f"$KV.{names.bucket}.>")
    return NatsPermissions((*asked, *told), (names.bell_subject, names.steps_subject("*")))


def bucket_permissions(bucket: str, *, writes: bool, makes: bool) -> NatsPermissions:
    """Returns what a user of one bucket needs; if it ``writes``, it hears of writes to the bucket too."""
    operations = (*_READ, *(("STREAM.PURGE",) if writes else ()), *(_MAKE[:2] if makes else ()))
    asked = tuple(f"{_API}{operation}.KV_{bucket}" for operation in operations)
    subject = f"$KV.{bucket}.>"
    return NatsPermissions((*asked, subject), (subject,)) if writes else NatsPermissions(asked, ())


def stream_permissions(stream: str, subject: str, *, makes: bool) -> NatsPermissions:
    """Returns what a user needs who reads one stream and appends to it."""
    operations = (*_READ, *(_MAKE[:2] if makes else ()))
    return NatsPermissions((*(f"{_API}{operation}.{stream}" for operation in operations), subject), ())


def target_permissions(stream: str, subjects: Sequence[str], *, makes: bool) -> NatsPermissions:
    """Returns the permissions of a worker that publishes to a separate stream on ``subjects``."""
    operations = (*_READ, *(_MAKE[:2] if makes else ()), "DIRECT.GET")
    return NatsPermissions((*(f"{_API}{operation}.{stream}" for operation in operations), *subjects), ())


def listing_permissions() -> NatsPermissions:
    """Returns what a user needs who looks for the groups of the account: the names of all its streams."""
    return NatsPermissions((f"{_API}STREAM.NAMES",), ())


def _list(subjects: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{subject}"' for subject in subjects) + "]"

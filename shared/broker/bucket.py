"""Small durable facts in JetStream key-value buckets, above all those of a group: its state bucket.

    group, replicator                 what the group is bound to, its progress: replicator_records
    tables                            what it publishes: published_tables
    publication                       what was made of it: replicator.membership.membership
    halt                              why it must not continue: halt
    snapshot, table.<oid>             the copy of the tables: ledger
    selection                         tables that were added and removed by command: table_selection
    orders                            commands about tables, and the outcome: table_orders
    worker., batches., ready.,        a worker's report, its newest batches, since when tables are ready, its position, who runs
      position., lease.<name>         it: worker_records
    alert_settings, alert_test        operators' alert settings, and a test of them: shared.alerts.alert_overrides
    subscription., subscriptions_changed, who subscribed, and how far each is: shared.subscriptions.subscription_records
      receivers.<worker>
    pipeline, run_requests            a SQL pipeline's runs, and commands about them: shared.pipelines
    paused_tables                     whose changes are held back: shared.units.paused_tables
    desired., process.<unit>          what a unit is to do, what its process reports: unit_records
    schema.<oid>                      what a table or type was like, by position: replicator.definitions.store
    definitions, definitions.<name>   what was published of definitions, and what a worker did: definition_log
    accepted, held.<name>             operators' decisions, and what waits for one: definition_decisions

Values are JSON objects, each the fields of a dataclass (``record``). A write that names the revision it replaces fails
when another client wrote in between.

Everything is read through the leader of the stream of the bucket, so every write acknowledged before is seen.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.js.api import KeyValueConfig, StorageType
from nats.js.kv import KeyValue

from pgsluice.shared.broker.connection import REQUEST_TIMEOUT_S, creates_streams, unanswered
from pgsluice.shared.broker.record import USE_THAT_VERSION, MalformedError, R, Record, decode, encode, malformed
from pgsluice.shared.broker.stream_error import (
    CLIENT_ERRORS,
    NO_MESSAGE_FOUND,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    absent_error,
    is_passing,
    payload_error,
    stream_error,
)
from pgsluice.shared.broker.streams import STREAM_MANAGEMENT, broker_time
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import USE_THE_NEWER_VERSION, Cause, PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.wire.names import GroupNames, is_group

_MEANINGFUL = (nats.js.errors.NotFoundError, nats.js.errors.KeyWrongLastSequenceError)
"""NotFoundError means that a key, or the bucket, does not exist."""

_LISTING_DEADLINE_S = 2.0

_FORMAT_KEY, _FORMAT = "pgsluice-format", "1"
"""Metadata of the stream behind the bucket. A version whose records an earlier one would misread sets another format, and then no
earlier one touches the bucket; without it the format is this one."""

_OPERATION = b"KV-Operation:"
"""A header of deletions and purges alone."""

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """One key's value and the revision that ``update`` must name to replace it."""

    value: V
    revision: int


@dataclass(frozen=True, slots=True)
class Written:
    """One write to a key; ``value`` is None if it deleted the key."""

    key: str
    revision: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class BucketEnd:
    """``revision`` is the highest that any key has, or had. ``created`` is when the server made the bucket, or updated its
    configuration."""

    created: str
    revision: int

    def may_follow(self, earlier: BucketEnd) -> bool:
        """Returns whether this may be the end of the same bucket later: one that was made again under the name, or restored from
        an older copy, gives revisions out twice."""
        return self.created == earlier.created and self.revision >= earlier.revision


class Bucket:
    """Every method raises TransientError when NATS does not answer; all but ``make`` and ``exists`` need the bucket."""

    history = 1
    """Revisions of a key that are kept."""
    spoken = "the bucket"
    missing_remedy = ""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._jetstream = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self.name = name
        self._bucket: KeyValue | None = None

    @property
    def max_payload(self) -> int:
        """Bytes of a message, at most: of a record with its key and headers."""
        return self._client.max_payload

    @property
    def described(self) -> str:
        """Returns the bucket's name for sentences."""
        return f"{self.spoken} {self.name}"

    async def exists(self) -> bool:
        """Raises TerminalError when the bucket has another format."""
        try:
            information = await self._asked(self._jetstream.stream_info(f"KV_{self.name}"))
        except nats.js.errors.NotFoundError:
            return False
        found = (information.config.metadata or {}).get(_FORMAT_KEY, _FORMAT)
        if found != _FORMAT:
            raise TerminalError(f"{self.described} has format {found}, and this version reads {_FORMAT}", USE_THE_NEWER_VERSION)
        self._bucket = self._read_through_leader()
        return True

    async def make(self, replicas: int) -> None:
        """Creates the bucket when there is none. Raises TerminalError where only an administrator creates it."""
        if not await self.exists():
            if not creates_streams(self._client):
                raise absent_error(self.described)
            config = KeyValueConfig(self.name, history=self.history, storage=StorageType.FILE, replicas=replicas, direct=False)
            await self._answer(self._jetstream.create_key_value(config))
            self._bucket = self._read_through_leader()

    async def read(self, key: str, record: type[R]) -> Entry[R] | None:
        """Returns the key's value as a ``record``; None if the key does not exist. Raises TerminalError if the value is
        malformed."""
        entry = await self.get(key)
        if entry is None:
            return None
        return Entry(self.decoded(key, record, entry.value), entry.revision)

    def decoded(self, key: str, record: type[R], value: bytes) -> R:
        """Returns the key's ``value`` as a ``record``. Raises TerminalError if it is malformed."""
        try:
            return decode(record, value)
        except MalformedError as error:
            raise malformed(key, self.described, error, getattr(record, "MALFORMED_REMEDY", USE_THAT_VERSION)) from None

    async def get(self, key: str) -> Entry[bytes] | None:
        """Returns the key's value, whatever it is; None when the key is not there."""
        try:
            entry = await self._answer((await self._opened()).get(key))
        except nats.js.errors.KeyNotFoundError:
            return None
        if entry.revision is None or entry.value is None:
            return None
        return Entry(entry.value, entry.revision)

    async def read_history(self, key: str) -> list[Entry[bytes]]:
        """Returns the entries of the key that NATS keeps, whatever they hold, the newest first, without deletions."""
        written = [Entry(each.value, each.revision) async for each in self.written(key, 0) if each.value is not None]
        return written[::-1]

    async def written(self, keys: str, after: int) -> AsyncIterator[Written]:
        """Yields the writes to ``keys``, which may be a pattern like ``table.*``, after the revision ``after``, in the order of
        revisions, as far as NATS keeps them: the last write to each key that has no history. Every write that was acknowledged
        before the last request is among them. What was purged leaves no trace."""
        prefix, stream = f"$KV.{self.name}.", f"KV_{self.name}"
        while True:
            answer = await self._request(f"MSG.GET.{stream}", {"seq": after + 1, "next_by_subj": prefix + keys})
            if "error" in answer:
                code = answer["error"].get("err_code")
                if code == NO_MESSAGE_FOUND:
                    return
                raise self._missing() if code == STREAM_NOT_FOUND else stream_error(stream, answer["error"])
            message = answer["message"]
            after = int(message["seq"])
            is_there = _OPERATION not in base64.b64decode(message.get("hdrs", ""))
            value = base64.b64decode(message.get("data", "")) if is_there else None
            yield Written(message["subject"].removeprefix(prefix), after, value)

    async def age_s(self, key: str) -> float | None:
        """Seconds since the key was written, by the broker's clock alone; None when it is not there."""
        stream = f"KV_{self.name}"
        information = await self._request(f"INFO.{stream}", {})
        found = await self._request(f"MSG.GET.{stream}", {"last_by_subj": f"$KV.{self.name}.{key}"})
        if "ts" not in information or "message" not in found:
            return None
        return (broker_time(information["ts"]) - broker_time(found["message"]["time"])).total_seconds()

    async def put(self, key: str, value: Record | Mapping[str, Any]) -> int:
        """Writes unconditionally; returns the new revision."""
        return await self._answer((await self._opened()).put(key, encode(value)))

    async def create(self, key: str, value: Record | Mapping[str, Any]) -> int | None:
        """Creates the key; returns the new revision, or None when the key exists."""
        try:
            return await self._answer((await self._opened()).create(key, encode(value)))
        except nats.js.errors.KeyWrongLastSequenceError:
            return None
        except nats.js.errors.KeyNotFoundError:  # refused, and not there to be read either
            raise TransientError(f"key {key} of {self.described} is being written", "it is tried again", Cause.NATS) from None

    async def update(self, key: str, value: Record | Mapping[str, Any], revision: int) -> int | None:
        """Updates the key; returns the new revision, or None when the key's revision is no longer ``revision``."""
        try:
            return await self._answer((await self._opened()).update(key, encode(value), last=revision))
        except nats.js.errors.KeyWrongLastSequenceError:
            return None

    async def change(self, key: str, nothing: R, change: Callable[[R], R]) -> Entry[R]:
        """Changes the record under ``key`` to the result of ``change``, called with ``nothing`` if the key does not
        exist. When two write at the same moment, the second starts from what the first wrote; a record that would stay
        the same is not written. Returns the current record, with revision 0 if there is none. Raises as ``read``."""
        while True:
            found = await self.read(key, type(nothing))
            before = Entry(nothing, 0) if found is None else found
            changed = change(before.value)
            if changed == before.value:
                return before
            written = await (self.create(key, changed) if found is None else self.update(key, changed, found.revision))
            if written is not None:
                return Entry(changed, written)

    async def delete(self, key: str, revision: int | None = None) -> bool:
        """Returns False when the key's revision is no longer ``revision``; None: any revision."""
        try:
            await self._answer((await self._opened()).delete(key, last=revision))
        except nats.js.errors.KeyWrongLastSequenceError:
            return False
        return True

    async def purge(self, key: str) -> None:
        """Removes the key with all that is kept of its history; nothing happens when there is none."""
        await self._opened()
        await self._request(f"PURGE.KV_{self.name}", {"filter": f"$KV.{self.name}.{key}"})

    async def keys(self) -> list[str]:
        """Returns every key there is, also while keys are being written; a key that was deleted may be among them.

        Reads the bucket's stream: the client's own listing misses a key that is replaced while it is listed.
        """
        await self._opened()
        prefix = f"$KV.{self.name}."
        information = await self._answer(self._jetstream.stream_info(f"KV_{self.name}", subjects_filter=prefix + ">"))
        return sorted(subject.removeprefix(prefix) for subject in information.state.subjects or {})

    async def end(self) -> BucketEnd:
        """Returns where the bucket ends now."""
        await self._opened()
        information = await self._answer(self._jetstream.stream_info(f"KV_{self.name}"))
        return BucketEnd(str(information.created), int(information.state.last_seq))

    async def destroy(self) -> None:
        """Removes the bucket and everything in it; nothing happens when there is none."""
        if await self.exists():
            await self._answer(self._jetstream.delete_key_value(self.name))
            self._bucket = None

    def _read_through_leader(self) -> KeyValue:
        """Reads from the leader. nats-py would read from any replica, however old, if the stream allows it, as streams
        of earlier versions do."""
        return KeyValue(self.name, f"KV_{self.name}", f"$KV.{self.name}.", self._jetstream, direct=False)

    async def _request(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        asking = self._client.request(STREAM_MANAGEMENT + operation, orjson.dumps(request), timeout=REQUEST_TIMEOUT_S)
        content: dict[str, Any] = orjson.loads((await self._answer(asking)).data)
        return content

    async def _opened(self) -> KeyValue:
        if self._bucket is None and not await self.exists():
            raise self._missing()
        assert self._bucket is not None
        return self._bucket

    def _missing(self) -> TerminalError:
        return TerminalError(f"{self.described} does not exist", self.missing_remedy)

    async def _answer(self, call: Awaitable[T]) -> T:
        """Like ``_asked``, for a bucket that existed: it may have been removed since."""
        try:
            return await self._asked(call)
        except nats.js.errors.KeyNotFoundError:
            raise
        except nats.js.errors.NotFoundError:
            raise self._missing() from None

    async def _asked(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except _MEANINGFUL:
            raise
        except nats.js.errors.BadRequestError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:  # the client raises it so for an update, not for a deletion
                raise nats.js.errors.KeyWrongLastSequenceError(description=error.description) from None
            raise self._refusal(error) from None
        except nats.errors.MaxPayloadError:
            raise payload_error(f"a record of {self.described}") from None
        except CLIENT_ERRORS as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> PgsluiceError:
        description = getattr(error, "description", None) or str(error)
        code = getattr(error, "err_code", None)
        about = f"error {code}" if code else type(error).__name__
        if is_passing(error):
            return unanswered(self._client, self.described, about)
        return TerminalError(
            f"JetStream refuses {self.described}: {description} ({about})",
            "check the account's JetStream limits and permissions",
        )


class StateBucket(Bucket):
    """The state bucket of one group. The group's replicator creates it."""

    spoken = "the state bucket"
    missing_remedy = "start the group's replicator first; it creates the bucket"

    def __init__(self, client: Client, names: GroupNames) -> None:
        super().__init__(client, names.bucket)
        self.client = client
        self.names = names

    async def ensure(self, settings: StreamSettings) -> None:
        """Creates the bucket as the group's streams are made, when there is none."""
        await self.make(settings.replicas)


async def find_groups(client: Client) -> list[str]:
    """Returns the names of all groups, by the existing state buckets; a bucket of another name belongs to another
    program. Raises TransientError when NATS does not answer, for example because this user lacks the permission."""
    prefix, found, total = f"KV_{GroupNames('x').bucket.removesuffix('x')}", list[str](), 1
    listed = 0
    while listed < total:  # a server lists a thousand at once
        request = orjson.dumps({"subject": "$KV.>", "offset": listed})
        try:
            answer = orjson.loads((await client.request("$JS.API.STREAM.NAMES", request, timeout=_LISTING_DEADLINE_S)).data)
        except (nats.errors.Error, TimeoutError):
            raise TransientError("NATS does not list its streams", "check that this user may ask", Cause.NATS) from None
        names = answer.get("streams") or []
        found += filter(is_group, (name.removeprefix(prefix) for name in names if name.startswith(prefix)))
        listed += len(names)
        total = int(answer.get("total") or 0) if names else 0
    return sorted(found)


async def opened_bucket(client: Client, names: GroupNames) -> StateBucket:
    """Opens the bucket for a command: raises UsageError for a group that was never started, and lists existing groups."""
    bucket = StateBucket(client, names)
    if await bucket.exists():
        return bucket
    raise UsageError(
        f"group {names.group!r} has never been started on this NATS",
        f"check group and nats-url; {describe_groups(await list_groups(client))}",
    )


async def list_groups(client: Client) -> list[str]:
    """Like ``find_groups``, but [] when NATS does not answer."""
    try:
        return await find_groups(client)
    except TransientError:
        return []


def describe_groups(groups: list[str]) -> str:
    return f"groups on this NATS: {', '.join(groups)}" if groups else "no group was started on this NATS"

"""A group's change stream whose replicator compresses bodies, always or for a while."""

from __future__ import annotations

from nats.js.api import StoreCompression

from pgsluice.shared.wire.message import MessageHeaders
from tests.replicated_group import Group

LARGE = "(SELECT string_agg(encode(uuid_send(gen_random_uuid()), 'hex'), '') FROM generate_series(1, 100000))"
"""Text of 3.2 MB, of which compressing leaves a little more than half."""


def test_a_group_whose_compression_changes_at_each_start_has_one_stream(replication: Group) -> None:
    replication.source.execute("ALTER TABLE t ALTER v TYPE text")
    for start, compression in enumerate(("none", "zstd", "s2", "zstd", "none")):
        replication.replicate(compression=compression)
        compressed = replication.audit().compressed
        replication.source.execute(f"INSERT INTO t SELECT n, 'a note' FROM generate_series({start}000, {start}999) n")
        replication.source.execute(f"UPDATE t SET v = {LARGE} WHERE id = {start}000")
        replication.source.execute(f"INSERT INTO t VALUES ({start + 1}00000, 'small')")
        replication.replicate(compression=compression)
        assert (replication.audit().compressed > compressed) == (compression == "zstd")
        found = replication.with_broker(lambda stream, _: stream.configuration_of(stream.name))
        assert found.compression == (StoreCompression.S2 if compression == "s2" else StoreCompression.NONE)
    audit = replication.audit()
    assert audit.rows == {"public.t insert": 5 * 1001, "public.t update": 5}
    assert audit.chunks > 5 * 2


def test_what_is_stored_compressed_is_counted_as_it_was(replication: Group) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t SELECT n, 'a note' FROM generate_series(1, 1000) n")
    replication.replicate(compression="zstd")
    message = replication.last_message()
    headers = MessageHeaders.decode(message.headers)
    assert headers.size is not None
    assert headers.total_bytes == headers.size == len(headers.body([message.data])) > 3 * len(message.data)

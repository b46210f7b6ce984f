"""Values of 100 MB are copied and streamed; one that PostgreSQL itself cannot decode is told as what it is."""

from __future__ import annotations

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

DEADLINE_S = 300.0

TEXT_OF_100_MB = "(SELECT string_agg(md5(n::text), '') FROM generate_series({0}, {0} + 3124999) n)"
BYTES_OF_50_MB = "(SELECT decode(string_agg(md5(n::text), ''), 'hex') FROM generate_series({0}, {0} + 3124999) n)"
"""Its text has twice its size."""
TOO_LARGE = "convert_to(repeat('x', 540000000), 'UTF8')"
"""Its text has more than the 1 GB that PostgreSQL can hold at once. It compresses well, so the WAL is small."""

SIZES = "SELECT id, octet_length(t), md5(t), octet_length(b), md5(b) FROM large ORDER BY id"


def replicate(keys: dict[str, object], *flags: str) -> tuple[int, str]:
    with PgsluiceProcess("replicator", *flags, config=keys) as process:
        return process.wait(DEADLINE_S), process.log()


def test_values_of_100_megabytes_are_copied_and_streamed(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE large (id int PRIMARY KEY, t text, b bytea)")
    source_database.execute(
        f"INSERT INTO large VALUES (1, {TEXT_OF_100_MB.format(1)}, {BYTES_OF_50_MB.format(5)}), (2, 'small', '')"
    )
    keys = configuration(group, source_database, target_database, nats_server, **{"copy-and-stream": True})
    code, log = replicate(keys, "--until-lsn", "current")
    assert code == 0, log
    source_database.execute(f"INSERT INTO large VALUES (3, {TEXT_OF_100_MB.format(7)}, NULL), (4, 'small', '')")
    source_database.execute(f"UPDATE large SET b = {BYTES_OF_50_MB.format(9)} WHERE id = 1")
    source_database.execute("UPDATE large SET t = 'smaller' WHERE id = 3")
    code, log = replicate(keys, "--until-lsn", "current")
    assert code == 0, log
    succeed(apply(keys))
    found = source_database.execute(SIZES)
    assert target_database.execute(SIZES) == found
    assert found[0][1:4:2] == (100_000_000, 50_000_000)


def test_a_value_that_postgresql_cannot_decode_is_named_as_one(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE large (id int PRIMARY KEY, b bytea)")
    keys = configuration(group, source_database, None, nats_server)
    assert replicate(keys, "--until-lsn", "current")[0] == 0
    source_database.execute(f"INSERT INTO large VALUES (1, {TOO_LARGE})")
    for _ in range(2):  # it stays so: nothing but a person can help
        code, log = replicate(keys)
        assert code == 70, log
        failure = log.splitlines()[-1]
        assert "the source cannot decode a change at " in failure
        assert "larger than 1 GB" in failure
        assert "pgsluice drop" in failure


def test_a_table_that_holds_one_is_errored_and_the_others_are_copied(
    source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute("CREATE TABLE large (id int PRIMARY KEY, b bytea); CREATE TABLE small (id int)")
    source_database.execute(f"INSERT INTO large VALUES (1, {TOO_LARGE})")
    source_database.execute("INSERT INTO small VALUES (1)")
    keys = configuration(group, source_database, None, nats_server, copy=True)
    code, log = replicate(keys)
    assert code == 70, log
    with PgsluiceProcess("status", config=keys) as status:
        assert status.wait() == 0
        shown = status.stdout()
    lines = [line for line in shown.splitlines() if "public." in line and not line.startswith(" ")]
    assert [line.split()[:2] for line in lines] == [["public.large", "errored"], ["public.small", "finished_copy"]], shown
    assert "larger than 1 GB" in shown

"""What role and database set at the target shapes no value and ends no merge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.testing.changes_builder import insert, table
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from pgsluice.worker.sinks.postgres import findings
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.target.connection import connect
from tests.servers import PostgresServer
from tests.worker.sinks.postgres.conftest import Target, Way, in_ways
from tests.worker.sinks.settings import worker_settings

T = table("public.t", "id bigint", "texts text[]")

SETTINGS = {
    "array_nulls": "off",
    "default_transaction_isolation": "serializable",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "transaction_timeout": "800ms",
    "idle_session_timeout": "800ms",
}
SLOW = """
    CREATE TABLE t (id bigint PRIMARY KEY, texts text[], isolation text);
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_sleep(1.2); new.isolation = current_setting('transaction_isolation'); RETURN new; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()
"""


@in_ways(Way.STAGED)
def test_settings_of_the_database_shape_no_value_and_end_no_merge(target: Target) -> None:
    """Neither in a task's session nor in the driver's."""
    target.execute(SLOW)
    for name, value in SETTINGS.items():
        target.execute(f"ALTER DATABASE {target.database.dbname} SET {name} = '{value}'")
    target.apply(insert(T, b"1", rb"{a,NULL,\\}"))
    query = "SELECT id, texts[2] IS NULL, texts[3], isolation FROM t"
    assert target.rows(query) == [(1, True, "\\", "read committed")]


def test_money_of_a_source_is_read_in_one_currency_whatever_the_database_sets(german: PostgresServer) -> None:
    database = german.create_database("warehouse")
    target = Target(database, 0)
    try:
        target.execute("CREATE TABLE prices (id bigint PRIMARY KEY, price money)")
        target.execute("ALTER DATABASE warehouse SET lc_monetary = 'de_DE.utf8'")
        target.apply(insert(table("public.prices", "id bigint", "price money"), b"1", b"$1,234.50"))
        assert target.rows("SELECT price::numeric::text FROM prices") == [("1234.50",)]
    finally:
        target.close()


@pytest.mark.parametrize("altered", ["ROLE {role}", "DATABASE {database}", "ROLE {role} IN DATABASE {database}"])
def test_who_made_the_sessions_read_only_is_named_with_its_cure(target: Target, altered: str) -> None:
    role = f"pgsluice_{target.database.dbname}"
    what = altered.format(role=f'"{role}"', database=f'"{target.database.dbname}"')
    target.execute(f"CREATE ROLE {role} LOGIN; ALTER {what} SET default_transaction_read_only = on")
    try:
        target.settings = replace(target.settings, target=replace(target.settings.target, user=role))
        with pytest.raises(TransientError, match=f"gives role '{role}' sessions that are read-only") as raised:
            connect(target.settings, "test")
        assert raised.value.statements == (f"ALTER {what} RESET default_transaction_read_only",)
        [found] = findings.find(worker_settings("orders"), target.settings, NOTHING_KNOWN)
        assert (found.check, found.statements) == ("target-connection", raised.value.statements)
        target.execute(found.statements[0])
        connect(target.settings, "test").close()
    finally:
        target.execute(f"DROP ROLE {role}")


def test_a_standby_as_the_target_is_named() -> None:
    with PostgresServer() as server:
        server.stop()
        (server.data_directory / "standby.signal").touch()
        server.start()
        settings = PostgresSinkSettings(
            server.settings_for("postgres"),
            sync_schema=False,
            disable_foreign_keys=False,
            sync_sequences=False,
            lock_timeout_s=1,
            on_missing_row="count",
        )
        with pytest.raises(TransientError, match="is a standby, which takes no writes: set target-host to the primary"):
            connect(settings, "test")

"""What role and database set at the target shapes no value and ends no merge."""

from __future__ import annotations

from tests.changes_builder import insert, table
from tests.servers import PostgresServer
from tests.worker.sinks.postgres.conftest import Target, Way, in_ways

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

"""The parts of the demo whose mistakes its own output would not show."""

from __future__ import annotations

from benchmarks.demo import shop
from benchmarks.demo.comparison import compare, sample
from tests.servers import Database
from tests.waiting import wait_until


def test_equal_tables_compare_equal_whatever_the_order_of_their_rows(
    source_database: Database, target_database: Database
) -> None:
    source_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, i::text FROM generate_series(1, 9) i"
    )
    target_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, i::text FROM generate_series(9, 1, -1) i"
    )
    assert compare(source_database, target_database, "t").is_equal
    assert all(source == target for source, target in sample(source_database, target_database, "t"))


def test_one_different_value_makes_tables_different(source_database: Database, target_database: Database) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    target_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, '')")
    assert not compare(source_database, target_database, "t").is_equal


def test_a_row_that_the_target_lacks_is_shown_as_missing(source_database: Database, target_database: Database) -> None:
    source_database.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (b, a)); INSERT INTO t VALUES (1, 2)")
    target_database.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (b, a))")
    assert not compare(source_database, target_database, "t").is_equal
    assert sample(source_database, target_database, "t") == [("(1,2)", "")]


def test_writers_keep_the_shop_busy_and_count_what_they_changed(source_database: Database) -> None:
    shop.create_tables(source_database)
    rows = shop.fill(source_database)
    assert rows == shop.FIRST_ROWS
    writers = [shop.Writer(source_database, 500) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        wait_until(lambda: all(writer.transactions >= 200 for writer in writers), what="200 transactions of each writer")
    finally:
        for writer in writers:
            writer.stop()
    counted = "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
    changes = rows + sum(writer.changes for writer in writers)
    wait_until(lambda: sum(count for (count,) in source_database.execute(counted)) == changes, what="the server's own count")

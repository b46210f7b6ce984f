"""The publication equals the configuration at every start."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError
from tests.replicated_group import Group


def published(replication: Group) -> set[str]:
    rows = replication.source.execute(
        "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s", [replication.names.publication]
    )
    return {name for (name,) in rows}


def test_tables_are_added_and_removed_at_the_next_start(replication: Group) -> None:
    replication.source.execute('CREATE TABLE "Odd ""name""-?" (id int PRIMARY KEY)')
    replication.replicate(tables=("t",))
    assert published(replication) == {"public.t"}
    replication.replicate(without_copy=("*",))
    assert published(replication) == {"public.t", 'public.Odd "name"-?'}
    replication.source.execute('INSERT INTO "Odd ""name""-?" VALUES (1)')
    replication.replicate(tables=('"Odd ""name""-?"',))
    assert published(replication) == {'public.Odd "name"-?'}
    assert replication.audit().changes == 1


def test_operations_follow_the_configuration(replication: Group) -> None:
    replication.replicate()
    replication.replicate(publish=("insert",))
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    replication.source.execute("DELETE FROM t")
    replication.replicate(publish=("insert",))
    assert replication.audit().rows == {"public.t insert": 1}


def test_partitions_are_published_under_their_root(replication: Group) -> None:
    replication.source.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    replication.source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (10)")
    replication.replicate()
    replication.source.execute("INSERT INTO p VALUES (1)")
    replication.replicate()
    assert replication.audit().rows == {"public.p insert": 1}


def test_tables_that_inherit_are_published_only_when_they_are_named(replication: Group) -> None:
    replication.source.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    replication.source.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    replication.replicate(tables=("parent",))
    assert published(replication) == {"public.parent"}


def test_row_filters_and_column_lists_stay_when_other_tables_join_and_leave(replication: Group) -> None:
    replication.source.execute("CREATE TABLE u (id int PRIMARY KEY)")
    publication = replication.names.publication
    replication.replicate(tables=("t", "u"))
    replication.source.execute(f"ALTER PUBLICATION {publication} SET TABLE t (id) WHERE (id > 5), u")
    with pytest.raises(
        TerminalError, match=r"changes of public\.t since .* another client changed its row filter or its columns"
    ):
        replication.replicate(tables=("t", "u"))
    replication.replicate(tables=("t",), without_copy=("t",))
    filters = replication.source.execute("SELECT tablename::text, rowfilter, attnames::text FROM pg_publication_tables")
    assert filters == [("t", "(id > 5)", "{id}")]

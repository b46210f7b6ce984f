"""Random walks of tables into a group's publication, out of it and about, as a machine of hypothesis' with a model beside it.

The model says of each table of the source whether the group has to hold it: by *what the publication says*, or where that is the
group's own by *what the group wants*. What the streams and the ledger hold is compared with what the source holds, once the group
has had time. A statement that PostgreSQL refuses changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pgsluice.shared.broker.ledger import LedgerContent, Phase, TableRecord
from tests.group_reader import GroupReader, Rows
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.waiting import wait_until

SETTLED_WITHIN_S = 180.0
NAMES = tuple(f"w{number}" for number in range(5))
SCHEMAS = ("s1", "s2", "s3")
names, schemas = st.sampled_from(NAMES), st.sampled_from(SCHEMAS)
ROOT = "s1.root"
OWN_SCHEMA = "s1"
"""The one of which the group's own publication is to have all tables."""


@dataclass(frozen=True)
class Walker:
    """A table. Its ids lie between ``first`` and ``first + 1000``. ``is_named``: by an administrator's publication."""

    oid: int
    first: int
    schema: str
    name: str
    is_named: bool = False
    is_logged: bool = True
    is_attached: bool = False

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass
class World:
    """What there is at the source, and what an administrator's publication says. ``has_own``: the publication is the group's."""

    has_own: bool
    tables: dict[str, Walker] = field(default_factory=dict)
    """By name, which no two have, whatever their schemas."""
    published_schemas: set[str] = field(default_factory=set)
    is_root_stale: bool = False
    """A partition was detached: no change told of its rows."""
    kept: set[int] = field(default_factory=set)
    """Tables that were asked for, and are not by the names that they have now: whether they are kept depends on when the group
    looked."""

    def has_to_hold(self, table: Walker) -> bool:
        if table.is_attached or not table.is_logged:
            return False
        return table.schema == OWN_SCHEMA if self.has_own else table.is_named or table.schema in self.published_schemas


class TableWalk(RuleBasedStateMachine):
    """``make_group`` and ``has_own`` are set before it runs: whether the publication is the group's own."""

    make_group: MakeGroup
    has_own: bool
    steps: ClassVar[Counter[str]] = Counter()
    """How often each kind of statement was carried out, by its first words."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: Iterator[int] = count(1)
        self.world = World(self.has_own)
        self.group: StreamingGroup

    @initialize(number=st.integers(0, 99))
    def begin(self, number: int) -> None:
        """``number`` is 0 in the first example, the simplest that there is: it walks nowhere, and costs no group."""
        if number == 0:
            return
        has_own, track_ddl = self.has_own, number % 2 == 0
        self.world = World(has_own, published_schemas=set() if has_own else {"s1"})
        keys = {"tables": f"t,{OWN_SCHEMA}.*"} if has_own else {"tables": [], "publication": "chosen"}
        self.group = self.make_group(track_ddl=track_ddl, **keys)
        for schema in SCHEMAS:
            self.group.source.execute(f"CREATE SCHEMA {schema}")
        self.group.source.execute(f"CREATE TABLE {ROOT} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
        self.group.source.execute(f"CREATE TABLE s1.root_0 PARTITION OF {ROOT} FOR VALUES FROM (0) TO (1000)")
        self.group.source.execute(f"INSERT INTO {ROOT} VALUES (1, 'born')")
        for name, schema in zip(NAMES, ("s1", "s2", "s1", "s3"), strict=False):
            self.create(name, schema, 10)
        if not has_own:
            options = "WITH (publish_via_partition_root = true)"
            self.group.source.execute(f"CREATE PUBLICATION chosen FOR TABLE t, {ROOT}, TABLES IN SCHEMA s1 {options}")
        self.group.start()

    def teardown(self) -> None:
        if not hasattr(self, "group"):
            return
        try:
            self.settle()
        finally:
            print(self.group.process.log())
            self.group.process.kill()
            self.group.source.drop()  # a server has slots for thirty

    @rule(name=names, schema=schemas, rows=st.integers(0, 20))
    def create(self, name: str, schema: str, rows: int) -> None:
        """Or, where there is such a table, dropped and made again, with a column of another name."""
        first, before = next(self.numbers) * 1000, self.world.tables.get(name)
        if not hasattr(self, "group") or (before is not None and before.is_attached):
            return
        dropping = "" if before is None else f"DROP TABLE {before.qualified_name};"
        values = f"INSERT INTO {schema}.{name} SELECT n, 'v' || n FROM generate_series({first}, {first + rows - 1}) n"
        made = f"CREATE TABLE {schema}.{name} (id bigint PRIMARY KEY, v{first} text)"
        if self.tried(f"BEGIN; {dropping} {made}; {values}; COMMIT"):
            [(oid,)] = self.group.source.execute(f"SELECT '{schema}.{name}'::regclass::oid::bigint")
            self.world.tables[name] = Walker(int(str(oid)), first, schema, name)

    @rule(name=names)
    def drop(self, name: str) -> None:
        table = self.world.tables.get(name)
        if table is not None and not table.is_attached and self.tried(f"DROP TABLE {table.qualified_name}"):
            del self.world.tables[name]

    @rule(name=names, truncates=st.booleans())
    def write(self, name: str, truncates: bool) -> None:
        table = self.world.tables.get(name)
        if table is None:
            return
        at, number = table.qualified_name, table.first + 20 + next(self.numbers) % 900
        truncating = f"TRUNCATE {at};" if truncates and not table.is_attached else ""
        self.tried(
            f"BEGIN; {truncating} INSERT INTO {at} VALUES ({number}, 'new') ON CONFLICT DO NOTHING;"
            f" DELETE FROM {at} WHERE id = (SELECT min(id) FROM {at});"
            f" INSERT INTO t VALUES ({number}, 'a') ON CONFLICT DO NOTHING; COMMIT"
        )

    @rule(name=names, schema=schemas, returns=st.booleans())
    def move(self, name: str, schema: str, returns: bool) -> None:
        table = self.world.tables.get(name)
        if table is None or table.is_attached or table.schema == schema:
            return
        at, moved = table.qualified_name, f"{schema}.{name}"
        if self.tried(f"ALTER TABLE {at} SET SCHEMA {schema}"):
            self.rename(table, replace(table, schema=schema))
            self.tried(f"INSERT INTO {moved} VALUES ({table.first + 999}, 'moved') ON CONFLICT DO NOTHING")
            if returns and self.tried(f"ALTER TABLE {moved} SET SCHEMA {table.schema}"):
                self.rename(replace(table, schema=schema), table)

    @rule(name=names, other=names)
    def exchange_names(self, name: str, other: str) -> None:
        """Or one is renamed, where the other is not there."""
        first, second = self.world.tables.get(name), self.world.tables.get(other)
        if first is None or name == other:
            return
        statements = [f"ALTER TABLE {first.qualified_name} RENAME TO between"]
        if second is not None:
            statements.append(f"ALTER TABLE {second.qualified_name} RENAME TO {name}")
        statements.append(f"ALTER TABLE {first.schema}.between RENAME TO {other}")
        if self.tried(f"BEGIN; {'; '.join(statements)}; COMMIT"):
            del self.world.tables[name]
            self.rename(first, replace(first, name=other))
            if second is not None:
                self.rename(second, replace(second, name=name))

    def rename(self, before: Walker, after: Walker) -> None:
        self.world.tables[after.name] = after
        if self.world.has_own and self.world.has_to_hold(before):
            self.world.kept.add(before.oid)

    @precondition(lambda self: not self.world.has_own)
    @rule(name=names, returns=st.booleans())
    def take_into_the_publication_or_out(self, name: str, returns: bool) -> None:
        table = self.world.tables.get(name)
        if table is None:
            return
        verbs = ("DROP", "ADD") if table.is_named else ("ADD", "DROP")
        if self.tried(f"ALTER PUBLICATION chosen {verbs[0]} TABLE {table.qualified_name}"):
            self.world.tables[name] = replace(table, is_named=not table.is_named)
            self.write(name, truncates=False)
            if returns and self.tried(f"ALTER PUBLICATION chosen {verbs[1]} TABLE {table.qualified_name}"):
                self.world.tables[name] = table

    @precondition(lambda self: not self.world.has_own and self.world.tables)
    @rule(wanted=st.lists(names, unique=True, max_size=3), schema=st.sampled_from([(), ("s1",), ("s2", "s1"), ("s3",)]))
    def set_the_publication(self, wanted: list[str], schema: tuple[str, ...]) -> None:
        tables = [table for name in wanted if (table := self.world.tables.get(name)) is not None and not table.is_attached]
        objects = ", ".join(["TABLE t", ROOT, *(table.qualified_name for table in tables)])
        covered = f", TABLES IN SCHEMA {', '.join(schema)}" if schema else ""
        if self.tried(f"ALTER PUBLICATION chosen SET {objects}{covered}"):
            self.world.published_schemas = set(schema)
            named = {table.oid for table in tables}
            self.world.tables = {name: replace(table, is_named=table.oid in named) for name, table in self.world.tables.items()}

    @precondition(lambda self: self.world.has_own)
    @rule(name=names, returns=st.booleans())
    def meddle_with_the_group_s_own(self, name: str, returns: bool) -> None:
        table, publication = self.world.tables.get(name), self.group.names.publication
        if table is None or table.is_attached:
            return
        if not self.tried(f"ALTER PUBLICATION {publication} DROP TABLE {table.qualified_name}"):
            self.tried(f"ALTER PUBLICATION {publication} ADD TABLE {table.qualified_name}, TABLES IN SCHEMA s3")
        self.write(name, truncates=False)
        if returns:
            self.tried(f"ALTER PUBLICATION {publication} ADD TABLE {table.qualified_name}")

    @rule(name=names)
    def attach_or_detach(self, name: str) -> None:
        """What is undone before the group looks, nothing tells of."""
        table = self.world.tables.get(name)
        if table is None or not table.is_logged:
            return
        at = table.qualified_name
        if table.is_attached:
            if self.tried(f"ALTER TABLE {ROOT} DETACH PARTITION {at}"):
                self.world.is_root_stale = True
                self.world.tables[name] = replace(table, is_attached=False)
                self.settle()
            return
        [(column,)] = self.group.source.execute(
            f"SELECT attname::text FROM pg_attribute WHERE attrelid = '{at}'::regclass AND attnum = 2"
        )
        self.settle()
        attaching = f"ALTER TABLE {ROOT} ATTACH PARTITION {at} FOR VALUES FROM ({table.first}) TO ({table.first + 1000})"
        filling = f"INSERT INTO {at} VALUES ({table.first + 500}, 'filled') ON CONFLICT DO NOTHING"
        if self.tried(f"BEGIN; ALTER TABLE {at} RENAME {column} TO v; {filling}; COMMIT") and self.tried(attaching):
            self.world.is_root_stale = False
            self.world.tables[name] = replace(table, is_attached=True, is_named=False)
            if not self.world.has_own and table.is_named:
                self.tried(f"ALTER PUBLICATION chosen DROP TABLE {at}")
            self.settle()

    @rule(name=names)
    def log_or_not(self, name: str) -> None:
        """What is undone before the group looks, nothing tells of."""
        table = self.world.tables.get(name)
        if table is None or table.is_attached:
            return
        self.settle()
        if self.tried(f"ALTER TABLE {table.qualified_name} SET {'UNLOGGED' if table.is_logged else 'LOGGED'}"):
            self.world.tables[name] = replace(table, is_logged=not table.is_logged)
            self.settle()

    @precondition(lambda self: self.world.tables)
    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        if kills:
            self.group.process.kill()
        self.group.restart()

    @precondition(lambda self: self.world.tables)
    @rule()
    def settle(self) -> None:
        """Waits until the group holds what it has to."""
        try:
            wait_until(lambda: not self.differences(), deadline_s=SETTLED_WITHIN_S, what="equality", interval_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"{self.differences()}: {self.world}") from error

    def tried(self, statements: str) -> bool:
        """False when PostgreSQL refuses them."""
        try:
            self.group.source.execute(statements)
        except psycopg.Error:
            return False
        self.steps[" ".join(statements.removeprefix("BEGIN; ").split()[:2])] += 1
        return True

    def differences(self) -> list[str]:
        group = self.group
        assert group.process.is_running, "the replicator ended"
        held = {oid: record for oid, record in group.ledger().tables.items() if record.phase is not Phase.LEFT}
        different = []
        tables = {table.oid: table for table in self.world.tables.values()}
        wanted = [table for table in tables.values() if self.world.has_to_hold(table)]
        oids = [table.oid for table in wanted]
        if not all(oid in held and held[oid].phase is Phase.FINISHED_COPY for oid in oids):
            return [f"not copied: {[table.qualified_name for table in wanted if is_waiting(held, table.oid)]}"]
        group.wait_until_published()
        reader = GroupReader(group.nats.settings(), group.name)
        places = {table.qualified_name: reader.ledger.tables[table.oid] for table in wanted}
        root = [(name, record) for name, record in named(reader.ledger, "t") + named(reader.ledger, "root")]
        for name, record in [*places.items(), *root]:
            if record.phase is not Phase.FINISHED_COPY:
                different.append(f"{name} is {record.phase}")
            elif not (name == ROOT and self.world.is_root_stale) and reader.rows_of(record) != self.at_source(name):
                different.append(f"{name} has other rows: {len(reader.rows_of(record))} {len(self.at_source(name))}")
        others = held.keys() - set(oids) - self.world.kept - {record.oid for _, record in root}
        return [*different, *(f"{held[oid].qualified_name} has not left" for oid in others)]

    def at_source(self, name: str) -> Rows:
        rows = self.group.source.execute(f"SELECT * FROM {name}")
        return {str(first).encode(): str(second).encode() for first, second in rows}


def is_waiting(held: dict[int, TableRecord], oid: int) -> bool:
    return oid not in held or held[oid].phase is not Phase.FINISHED_COPY


def named(ledger: LedgerContent, name: str) -> list[tuple[str, TableRecord]]:
    return [
        (record.qualified_name, record)
        for record in ledger.tables.values()
        if record.table == name and record.phase is not Phase.LEFT
    ]

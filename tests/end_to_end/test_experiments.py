"""Every kind of statement, from the source to a Postgres target: equal afterwards, or what is documented.

The experiments of the capture (``tests/replicator/definitions/experiments.txt``) are played in one source, each in schemas of its
own, while nobody runs: so replicator and worker meet each definition in its place, with a catalog that is far ahead of it. The
group follows what they make, drops what they drop, and copies what no row tells of. Those that alter the publication stop it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from pgsluice.shared.broker.ledger import Ledger, LedgerContent
from pgsluice.shared.errors import TerminalError
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import apply, replicate, succeed
from tests.replicated_group import Group
from tests.replicator.definitions.experiments import Experiment, load_experiments
from tests.servers import Database, NatsServer, PostgresServer
from tests.servers.postgres_binaries import NEWEST, VERSIONS

EXPERIMENTS = load_experiments()
PUBLICATION = "{publication}"
FOLLOWED = {"tables": "x*.t,x*.p,x*.n", "track-ddl": True, "copy-and-stream": True}
SAME = {"ddl-policy": {"drop-table": "drop", "detach-partition": "delete"}}

TABLES = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname ~ 'x[0-9]+$'
"""
COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod),
       ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = atttypid ORDER BY enumsortorder)
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY 1
"""
KEY = """
SELECT a.attname::text FROM pg_constraint c, unnest(c.conkey) WITH ORDINALITY AS k (number, position), pg_attribute a
WHERE a.attnum = k.number AND a.attrelid = c.conrelid AND c.conrelid = %s AND c.contype = 'p' ORDER BY k.position
"""


@dataclass(frozen=True)
class Moved:
    """An experiment in schemas of its own: ``schema`` for public, and others that end like it."""

    experiment: Experiment
    schema: str

    @property
    def places(self) -> dict[str, str]:
        """Where the target has tables of it in the end, each with its mark."""
        return {f"{self.schema}.{name.rstrip('*!')}": name.lstrip("abcdefghijklmnopqrstuvwxyz") for name in self.experiment.ends}

    def create(self, source: Database, target: Database) -> None:
        """The types are at the target too: they are the user's to make."""
        transactions = [self.experiment.setup, *(transaction for transaction, _ in self.experiment.steps)]
        types = re.findall(r"CREATE SCHEMA \w+(?=;)|CREATE (?:TYPE|DOMAIN) [^;]+", ";".join(transactions))
        for database, statements in ((source, self.experiment.setup), (target, ";".join(types))):
            database.execute(f"CREATE SCHEMA {self.schema}")
            self._execute(database, statements)

    def play(self, source: Database) -> None:
        for transaction, _ in self.experiment.steps:
            self._execute(source, transaction)

    def _execute(self, database: Database, statements: str) -> None:
        with database.connect() as connection:
            connection.execute(f"SET search_path = {self.schema}".encode())
            connection.execute(self._moved(statements).encode())

    def _moved(self, statements: str) -> str:
        everything = ";".join([self.experiment.setup, *(transaction for transaction, _ in self.experiment.steps)])
        made = re.findall(r"CREATE SCHEMA (\w+)", everything) + re.findall(r"ALTER SCHEMA \w+ RENAME TO (\w+)", everything)
        names = "|".join(["public", *made])
        named = rf"\b(?:{names})(?=\.)|(?<=SCHEMA )(?:{names})\b|(?<=RENAME TO )(?:{names})\b"
        return re.sub(named, lambda found: f"{found[0]}_{self.schema}".removeprefix("public_"), statements)


def moved(version: int) -> list[Moved]:
    able = [each for each in EXPERIMENTS if each.can_run_on(version) and not alters_publication(each)]
    return [Moved(experiment, f"x{number:02}") for number, experiment in enumerate(able)]


def alters_publication(experiment: Experiment) -> bool:
    return any(PUBLICATION in transaction for transaction, _ in experiment.steps)


def look(database: Database, places: set[str] | None = None) -> dict[str, tuple[object, ...]]:
    """Columns without their order, with labels of enums, key and rows of ``places``, or of all tables of experiments."""
    found: dict[str, tuple[object, ...]] = {}
    for oid, schema, name in database.execute(TABLES):
        place = f"{schema}.{name}"
        if places is None or place in places:
            columns = database.execute(COLUMNS, [oid])
            listed = ", ".join(f'"{column}"::text' for column, *_ in columns)
            rows = database.execute(f'SELECT {listed} FROM "{schema}"."{name}" ORDER BY {listed}')
            found[place] = (columns, database.execute(KEY, [oid]), rows)
    return found


def copied_again(ledger: LedgerContent) -> set[str]:
    return {record.qualified_name for record in ledger.tables.values() if record.attempt > 1}


LONG = [pytest.param(version, marks=[pytest.mark.long, pytest.mark.versions]) for version in VERSIONS if version != NEWEST]


@pytest.fixture
def databases(postgres_of: Callable[[int], PostgresServer], version: int) -> Iterator[tuple[Database, Database]]:
    """Source and target."""
    name = uuid.uuid4().hex[:12]
    source, target = (postgres_of(version).create_database(f"{role}_{name}") for role in ("source", "target"))
    yield source, target
    source.drop()
    target.drop()


@pytest.mark.parametrize("version", [pytest.param(NEWEST, marks=pytest.mark.long), *LONG])
def test_the_target_is_as_the_source_after_every_kind_of_statement(
    databases: tuple[Database, Database], nats_server: NatsServer, group: str, version: int
) -> None:
    source, target = databases
    experiments = moved(version)
    for each in experiments:
        each.create(source, target)
    source.execute("CREATE SCHEMA x; CREATE TABLE x.n (a int PRIMARY KEY)")  # a pattern has to match from the beginning
    keys = configuration(group, source, target, nats_server, **FOLLOWED, **SAME)
    succeed(replicate(keys))
    succeed(apply(keys))
    for each in experiments:
        each.play(source)
    marks = {place: mark for each in experiments for place, mark in each.places.items()}
    keyless = [place for place, mark in marks.items() if mark == "!"]
    refused = replicate(keys)
    assert re.findall(r"without a primary key or replica identity: (\S+);", refused.log) == keyless
    for place in keyless:
        source.execute(f"ALTER TABLE {place} REPLICA IDENTITY FULL")
    succeed(replicate(keys))
    succeed(apply(keys))
    assert look(target) == look(source, {*marks})
    ledger = Group(group, source, nats_server.settings()).with_broker(lambda _, bucket: Ledger(bucket).load())
    assert copied_again(ledger) == {place for place, mark in marks.items() if mark == "*"}


def altering(version: int) -> list[Experiment]:
    return [each for each in EXPERIMENTS if each.can_run_on(version) and alters_publication(each)]


STOPPING = [
    pytest.param(version, experiment, id=f"{version}-{experiment.name}", marks=[] if version == NEWEST else [pytest.mark.long])
    for version in VERSIONS
    for experiment in altering(version)
]


@pytest.mark.parametrize(("version", "experiment"), STOPPING)
def test_a_publication_that_somebody_altered_is_the_groups_again_or_stops_it_until_a_person_decides(
    databases: tuple[Database, Database], nats_server: NatsServer, group: str, experiment: Experiment
) -> None:
    """Nothing comes to a target that the group was not to have, and nothing is missing there without a word."""
    source, _ = databases
    replication = Group(group, source, nats_server.settings())
    source.execute(experiment.setup)
    [table] = [name for name in ("t", "p") if source.execute("SELECT to_regclass(%s) IS NOT NULL", [name]) == [(True,)]]
    replication.replicate(tables=(table,), track_ddl=True)
    for transaction, _ in experiment.steps:
        source.execute(transaction.replace(PUBLICATION, replication.names.publication))
    if experiment.ends == {"stopped"}:
        for _ in range(2):
            with pytest.raises(
                TerminalError, match=rf"changes of public\.{table} since .* may be missing|dropped and created again"
            ):
                replication.replicate(tables=(table,), track_ddl=True)
    else:
        replication.replicate(tables=(table,), track_ddl=True)
        published = "SELECT tablename::text FROM pg_publication_tables WHERE pubname = %s"
        assert source.execute(published, [replication.names.publication]) == [(table,)]

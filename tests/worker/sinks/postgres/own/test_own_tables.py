"""Our own tables at the target belong to us, or to somebody who could do anything there anyway."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pgsluice.shared.config.settings import PostgresSettings
from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from tests.servers import Database
from tests.worker.sinks.postgres.conftest import Target

HOSTILE_TABLE = """
    CREATE TABLE pgsluice.applied (
        group_name text NOT NULL, worker text NOT NULL, sequence bigint NOT NULL, commit_lsn pg_lsn NOT NULL,
        committed_at timestamptz NOT NULL, stream_created text NOT NULL, batches bigint NOT NULL, changes bigint NOT NULL,
        updated_at timestamptz NOT NULL, snapshot_sequence bigint NOT NULL DEFAULT 0, copied_rows bigint NOT NULL DEFAULT 0,
        rules text NOT NULL DEFAULT '', PRIMARY KEY (group_name, worker));
    CREATE TABLE pgsluice.copied (group_name text, worker text, sequence bigint);
    CREATE TABLE pgsluice.pending_keys (group_name text, worker text, table_schema text, table_name text,
        columns text[], is_primary bool);
    CREATE FUNCTION pgsluice.run() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO pgsluice.ran VALUES (current_user); RETURN new; END $$;
    CREATE TABLE pgsluice.ran (who text);
    GRANT ALL ON ALL TABLES IN SCHEMA pgsluice TO PUBLIC;
    GRANT ALL ON SCHEMA pgsluice TO PUBLIC;
    CREATE TRIGGER run BEFORE INSERT ON pgsluice.applied FOR EACH ROW EXECUTE FUNCTION pgsluice.run()
"""


class Roles:
    """Roles of one test, who may make schemas in its database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.made: list[str] = []

    def new(self, options: str = "") -> str:
        name = f"role_{uuid.uuid4().hex[:8]}"
        grants = f"GRANT CREATE ON DATABASE {self.database.dbname} TO {name}; GRANT CREATE ON SCHEMA public TO {name}"
        self.database.execute(f"CREATE ROLE {name} LOGIN {options}; {grants}")
        self.made.append(name)
        return name

    def execute(self, role: str, statements: str) -> None:
        self.database.execute(f"SET ROLE {role}; {statements}")

    def remove(self) -> None:
        for name in self.made:
            self.database.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


@pytest.fixture
def roles(target_database: Database) -> Iterator[Roles]:
    target_database.execute("DROP SCHEMA pgsluice CASCADE")
    made = Roles(target_database)
    yield made
    made.remove()


@pytest.fixture
def sink_of(new_target: Callable[[int], Target], target_database: Database) -> Callable[[str], PostgresSink]:
    """A sink whose worker has the role."""

    def make(role: str) -> PostgresSink:
        settings: PostgresSettings = replace(target_database.settings, user=role)
        return new_target(0).new_sink(target=settings)

    return make


@pytest.mark.parametrize("worker", ["", "SUPERUSER"])
def test_a_schema_that_somebody_else_made_is_refused_and_nothing_of_it_runs(
    roles: Roles, sink_of: Callable[[str], PostgresSink], worker: str
) -> None:
    stranger, role = roles.new(), roles.new(worker)
    roles.execute(stranger, f"CREATE SCHEMA pgsluice; {HOSTILE_TABLE}")
    with pytest.raises(TerminalError, match=f"schema pgsluice of the target belongs to '{stranger}'") as raised:
        sink_of(role).open()
    assert raised.value.exit_code == 70
    assert f'ALTER SCHEMA pgsluice OWNER TO "{role}"' in raised.value.remedy
    assert roles.database.execute("TABLE pgsluice.ran") == []


def test_a_table_that_somebody_else_made_in_our_schema_is_refused_and_nothing_of_it_runs(
    roles: Roles, sink_of: Callable[[str], PostgresSink]
) -> None:
    stranger, role = roles.new(), roles.new()
    roles.execute(role, f"CREATE SCHEMA pgsluice; GRANT ALL ON SCHEMA pgsluice TO {stranger}")
    roles.execute(stranger, HOSTILE_TABLE)
    with pytest.raises(TerminalError, match=rf"table pgsluice\.applied of the target belongs to '{stranger}'"):
        sink_of(role).open()
    assert roles.database.execute("TABLE pgsluice.ran") == []


def test_what_a_superuser_or_a_role_of_ours_made_is_used(roles: Roles, sink_of: Callable[[str], PostgresSink]) -> None:
    team, role = roles.new(), roles.new()
    roles.database.execute(f"GRANT {team} TO {role}; CREATE SCHEMA pgsluice; GRANT ALL ON SCHEMA pgsluice TO {team}")
    sink = sink_of(role)
    assert sink.open().sequence == 0
    roles.database.execute(f"ALTER SCHEMA pgsluice OWNER TO {team}; ALTER TABLE pgsluice.applied OWNER TO {team}")
    assert sink.open().sequence == 0

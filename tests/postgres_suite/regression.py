"""The files of ``src/test/regress``, run in the order of its schedule at the source of a live group."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.postgres_suite.contents import MARKER_SCHEMA
from tests.postgres_suite.sources import tests_of
from tests.servers import Database
from tests.servers.child import PrivateDirectory, unprivileged_user
from tests.servers.postgres_binaries import binaries

FILE_DEADLINE_S = 600.0
# As pg_regress sets them (pg_regress.c), but for the server's address.
_ENVIRONMENT = {
    "PGTZ": "America/Los_Angeles",
    "PGDATESTYLE": "Postgres, MDY",
    "PGOPTIONS": "-c intervalstyle=postgres_verbose",
    "LANG": "C",
    "LC_MESSAGES": "C",
    "PG_DLSUFFIX": ".so",
}
_DATABASE = ("lc_messages", "lc_monetary", "lc_numeric", "lc_time")

# Most tables of the suite have no key, and one without a replica identity is not published: what whoever makes tables at a source
# has to say of each is said here, in the same command. From 18 on a whole row is no identity where columns are generated. The
# trigger's name comes before those of pgsluice: triggers fire by name.
_IDENTITIES = f"""
CREATE SCHEMA {MARKER_SCHEMA};
CREATE TABLE {MARKER_SCHEMA}.marker (id bigint PRIMARY KEY, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION {MARKER_SCHEMA}.give_identity() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE made record;
BEGIN
    FOR made IN SELECT c.oid::regclass AS name FROM pg_event_trigger_ddl_commands() d
                JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
                WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident = 'd' AND NOT EXISTS (
                    SELECT FROM pg_attribute WHERE attrelid = c.oid AND attgenerated <> ''
                    AND current_setting('server_version_num')::int >= 180000)
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made.name);
    END LOOP;
END $$;
CREATE EVENT TRIGGER a_give_identity ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE SCHEMA')
    EXECUTE FUNCTION {MARKER_SCHEMA}.give_identity();
"""


def prepare(source: Database) -> None:
    """A database as pg_regress makes it, whose tables get a replica identity."""
    for setting in _DATABASE:
        source.execute(f"ALTER DATABASE {source.dbname} SET {setting} TO 'C'")
    source.execute(f"ALTER DATABASE {source.dbname} SET bytea_output TO 'hex'")
    source.execute(f"ALTER DATABASE {source.dbname} SET timezone_abbreviations TO 'Default'")
    source.execute(_IDENTITIES)


class RegressionFiles:
    """The files of one version, in a directory that the server can read and write, as some of them ask for."""

    def __init__(self, version: int, database: Database) -> None:
        self._database = database
        self._private = PrivateDirectory("regress", unprivileged_user())
        self._here = self._private.path / "regress"
        shutil.copytree(tests_of(version) / "src/test/regress", self._here)
        (self._here / "results").mkdir()
        user = unprivileged_user()
        if user is not None:
            for path in (self._here, *self._here.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        self._programs = binaries()
        self._libraries = binaries(version).parent / "lib"

    def close(self) -> None:
        self._private.remove()

    def schedule(self) -> list[list[str]]:
        """The names of the files; those of one list do not depend on each other."""
        lines = (self._here / "parallel_schedule").read_text().splitlines()
        return [line.removeprefix("test:").split() for line in lines if line.startswith("test:")]

    def run(self, file: str) -> str:
        """Has psql run the file, as pg_regress does; returns all that it printed."""
        settings = self._database.settings
        place = {"PGHOST": settings.host, "PGPORT": str(settings.port), "PGUSER": settings.user, "PGDATABASE": settings.dbname}
        paths = {"PG_ABS_SRCDIR": str(self._here), "PG_ABS_BUILDDIR": str(self._here), "PG_LIBDIR": str(self._libraries)}
        command = [str(self._programs / "psql"), "-X", "-a", "-q", "-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"]
        finished = subprocess.run(
            command,
            stdin=self._script(file).open("rb"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT | place | paths | {"PGAPPNAME": f"pg_regress/{file}", "PATH": os.environ["PATH"]},
            cwd=self._here,
            timeout=FILE_DEADLINE_S,
        )
        return finished.stdout.decode(errors="replace")

    def _script(self, file: str) -> Path:
        return self._here / "sql" / f"{file}.sql"


def errors_of(printed: str) -> Iterator[str]:
    """Yields each line in which psql prints an error of the server."""
    for line in printed.splitlines():
        if re.match(r"(psql:\S+: )?ERROR: ", line):
            yield line

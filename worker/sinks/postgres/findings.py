"""Findings of ``pgsluice check`` about a target database. The session is read-only."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.postgres.session_settings import is_unverified, unverified_fact, unverified_remedy
from pgsluice.shared.preflight.clock import clock_findings
from pgsluice.shared.preflight.database import IDENTITY_QUERY, LOCALE_QUERY, DatabaseLocale
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.preflight.table_fit import TableFit
from pgsluice.worker.sinks.postgres.preflight.target_role import read_role, role_findings
from pgsluice.worker.sinks.postgres.target.connection import Connection, connect
from pgsluice.worker.sinks.postgres.target.failure import target_error


def find(worker: WorkerSettings, settings: PostgresSinkSettings, incoming: Incoming) -> list[Finding]:
    found = Findings(Subject.TARGET)
    if is_unverified(settings.target):
        found.note("target-unverified", Severity.WARNING, unverified_fact("target"), unverified_remedy("target-"))
    try:
        with connect(settings, "pgsluice check") as connection:
            connection.execute("SET default_transaction_read_only = on")
            _look(connection, worker, settings, incoming, found)
    except psycopg.Error as error:
        found.take([Finding.of(target_error(error, None, "being looked at"), "target-connection", Subject.TARGET)])
    except PgsluiceError as error:
        found.take([Finding.of(error, "target-connection", Subject.TARGET)])
    return list(found)


def _look(
    connection: Connection, worker: WorkerSettings, settings: PostgresSinkSettings, incoming: Incoming, found: Findings
) -> None:
    found.take(role_findings(connection, settings))
    found.take(_database(connection, incoming))
    found.take(_clock(connection))
    if incoming.tables is None:
        fact = "the target's tables were not checked: neither the source nor NATS is available to list them"
        found.note("target-tables-unknown", Severity.INFO, fact, "check with the source, or start the replicator once")
        return
    policies = Policies.parse(worker.ddl, worker.ddl_policy)
    fit = TableFit(connection, settings, read_role(connection), (worker.group, worker.name), policies)
    fit.look(incoming.tables, incoming.types, is_from_catalog=incoming.is_from_catalog)
    found.take(fit.found)


def _database(connection: Connection, incoming: Incoming) -> list[Finding]:
    """Checks the database, held against the source's."""
    found = []
    with connection.cursor(row_factory=class_row(DatabaseLocale)) as cursor:
        here = cursor.execute(LOCALE_QUERY).fetchone()
    identity = connection.execute(IDENTITY_QUERY).fetchone()
    if identity == incoming.identity and not incoming.is_routed:
        fact = f"the target is the source: database {sql.Identifier(connection.info.dbname).as_string()} of the same server"
        remedy = "check target-host and target-dbname, or route every table to another schema"
        found.append(Finding("target-is-source", Severity.ERROR, Subject.TARGET, fact, remedy, is_usage=True))
    there = incoming.locale
    if here is None or there is None:
        return found
    if here.encoding != there.encoding:
        fact = f"the target's encoding is {here.encoding}, the source's {there.encoding}"
        remedy = f"characters that {here.encoding} lacks become dead letters; make the target with the source's encoding"
        found.append(Finding("target-encoding", Severity.WARNING, Subject.TARGET, fact, remedy))
    if (here.collation, here.character_type, here.provider) != (there.collation, there.character_type, there.provider):
        fact = f"the target sorts text as {here.collation}, the source as {there.collation}"
        remedy = "rows are the same; ORDER BY and unique indexes on lower(…) may differ"
        found.append(Finding("target-collation", Severity.WARNING, Subject.TARGET, fact, remedy))
    return found


def _clock(connection: Connection) -> list[Finding]:
    asked = datetime.now(UTC)
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return clock_findings(Subject.TARGET, asked, row[0], datetime.now(UTC))

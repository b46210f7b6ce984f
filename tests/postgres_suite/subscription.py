"""CREATE, ALTER and DROP SUBSCRIPTION, done with groups: one for each publication, because a group reads one.

Publications that share tables are joined for one group (``joined_publication``): two would apply the rows twice.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import Outcome
from tests.postgres_suite.joined_publication import JoinedPublication, share_tables
from tests.servers import Database, NatsServer, PgsluiceProcess, PostgresServer
from tests.waiting import wait_until

DEADLINE_S = 90.0
START_DEADLINE_S = 120.0
_NAME = r'("(?:[^"]|"")+"|\w+)'
_STATEMENT = re.compile(
    rf"\s*(CREATE|ALTER|DROP)\s+SUBSCRIPTION\s+(?:IF\s+EXISTS\s+)?{_NAME}\s*(.*?);?\s*", re.IGNORECASE | re.DOTALL
)
_ANY = re.compile(r"^[ \t]*(?:CREATE|ALTER|DROP)\s+SUBSCRIPTION\b[^;]*(?:;|\Z)", re.IGNORECASE | re.MULTILINE)
_CREATE = re.compile(
    r"CONNECTION\s+(?:'|\$\$)((?:[^'$]|'')*)(?:'|\$\$)\s+PUBLICATION\s+(.*?)\s*(?:WITH\s*\((.*)\))?", re.IGNORECASE | re.DOTALL
)
_LIST = re.compile(r"(SET|ADD|DROP)\s+PUBLICATION\s+(.*?)\s*(?:WITH\s*\((.*)\))?", re.IGNORECASE | re.DOTALL)
_CONNECTION = re.compile(r"CONNECTION\s+'((?:[^']|'')*)'", re.IGNORECASE | re.DOTALL)
_RENAME = re.compile(rf"RENAME\s+TO\s+{_NAME}", re.IGNORECASE)
# Of tables of a publication that publishes updates or deletes, and their partitions: those whose updates would fail.
_WITHOUT_IDENTITY = """
SELECT DISTINCT each.oid::regclass::text FROM pg_publication_tables t
JOIN pg_publication p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
CROSS JOIN LATERAL (SELECT format('%%I.%%I', t.schemaname, t.tablename)::regclass AS name) AS named
JOIN pg_class each ON each.oid = named.name OR each.oid IN (SELECT relid FROM pg_partition_tree(named.name))
WHERE t.pubname = %s AND (each.relreplident = 'n' OR each.relreplident = 'd'
    AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = each.oid AND i.indisprimary))
"""
_IS_THERE = "SELECT FROM pg_publication WHERE pubname = %s"


class NotTranslatedError(RuntimeError):
    """A statement that says nothing that a group has."""


@dataclass(frozen=True, slots=True)
class Statement:
    verb: str
    name: str
    rest: str

    @staticmethod
    def parse(text: str) -> Statement:
        found = _STATEMENT.fullmatch(text)
        assert found is not None, text
        return Statement(found[1].upper(), _unquoted(found[2]), found[3])


def parts_of(script: str) -> Iterator[str | Statement]:
    """The script's statements about subscriptions, and what stands between them as it is."""
    position = 0
    for found in _ANY.finditer(script):
        if script[position : found.start()].strip():
            yield script[position : found.start()]
        yield Statement.parse(found[0])
        position = found.end()
    if script[position:].strip(" \t\n;"):
        yield script[position:]


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _options(text: str | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in re.split(r",\s*(?=\w+\s*=)", text or "") if each.strip()]
    return {key.strip().lower(): value.strip().strip("'").lower() or "true" for key, _, value in pairs}


def _publications(text: str) -> list[str]:
    return [_unquoted(each.strip()) for each in text.split(",")]


class Subscription:
    """As PostgreSQL has it: a name, a connection, publications; each of these is a group of its own."""

    def __init__(self, name: str, target: Database, nats: NatsServer, note: Callable[[str], None]) -> None:
        self.name, self.target = name, target
        self._nats, self._note = nats, note
        self._suffix = uuid.uuid4().hex[:6]
        self._groups: dict[str, GroupUnderTest] = {}
        self._source: dict[str, Any] = {}
        self._is_enabled = True
        self._changed: dict[str, Any] = {}
        self._made = 0
        self._publications: list[str] = []
        self._joined: JoinedPublication | None = None

    def create(self, rest: str) -> None:
        found = _CREATE.fullmatch(rest)
        assert found is not None, rest
        options = _options(found[3])
        self._source = conninfo_to_dict(found[1].replace("''", "'"))
        self._is_enabled = options.get("enabled", "true") in ("true", "on") and options.get("connect", "true") in ("true", "on")
        self._changed = {"origin": "none"} if options.get("origin") == "none" else {}
        is_copied = options.get("copy_data", "true") in ("true", "on")
        for publication in self._joined_if_shared(_publications(found[2])):
            self._add(publication, is_copied)

    def alter(self, rest: str) -> None:
        verb = re.split(r"\W", rest, maxsplit=1)[0].upper()
        if verb in ("SET", "ADD", "DROP") and (found := _LIST.fullmatch(rest)):
            self._set_publications(found[1].upper(), _publications(found[2]), _options(found[3]))
        elif verb == "ENABLE":
            self._is_enabled = True
            for group in self._groups.values():
                start(group)
        elif verb == "DISABLE":
            self._is_enabled = False
            for group in self._groups.values():
                stop(group)
        elif verb == "CONNECTION" and (found := _CONNECTION.fullmatch(rest)):
            self._source = conninfo_to_dict(found[1].replace("''", "'"))
            self._restart()
        elif verb == "RENAME" and (found := _RENAME.fullmatch(rest)):
            self.name = _unquoted(found[1])
            self._note("a group keeps its name")
            self._restart()
        elif verb == "REFRESH":
            pass  # a group looks at its publication by itself
        elif verb in ("SET", "OWNER", "SKIP"):
            self._note(f"no group has: ALTER SUBSCRIPTION … {rest}")
            self._restart()
        else:
            raise NotTranslatedError(rest)

    def drop(self) -> None:
        for publication in list(self._groups):
            self._remove(publication)

    @property
    def walsender_name(self) -> str:
        return str(self._source.get("application_name", self.name))

    @property
    def slot(self) -> str:
        """Of its first group, as the group's connection is called too."""
        return next((_slot(group) for group in self._groups.values()), self.name)

    def reads_from(self, server: PostgresServer) -> bool:
        return int(self._source.get("port", 0)) == server.port

    def follow(self) -> None:
        """After the source was altered. A group refuses tables whose updates would fail at the source, and PostgreSQL does not:
        they get the identity for which the refusal asks."""
        for group in self._groups.values():
            if self._joined is not None:
                with _source_of(group.keys) as connection:
                    self._joined.write(connection)
            self._give_identities(group.keys)

    def _give_identities(self, keys: dict[str, Any]) -> None:
        with _source_of(keys) as connection:
            for (table,) in connection.execute(_WITHOUT_IDENTITY, [keys["publication"]]).fetchall():
                connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
                self._note(f"REPLICA IDENTITY FULL given to {table}")

    def close(self) -> None:
        for group in self._groups.values():
            group.__exit__(None, None, None)

    def wait_for_catchup(self) -> None:
        """Until all that the source has now is applied, and all copies with it."""
        for group in self._groups.values():
            catch_up(group)

    def _add(self, publication: str, is_copied: bool) -> None:
        self._made += 1
        name = f"{_group_name(self.walsender_name)[:20]}_{self._suffix}_{self._made}"
        more = {"publication": publication, "check-interval": "1s"} | self._changed
        more |= {"copy-and-stream": True} if is_copied else {"stream": True}
        keys = self._keys(name, more)
        with _source_of(keys) as connection:
            published = connection.execute(_IS_THERE, [publication]).fetchone()
        if published is None:
            self._note(f"left out, there is no publication {publication}")
            return
        group = GroupUnderTest(keys)
        self._give_identities(group.keys)
        self._groups[publication] = group
        if self._is_enabled:
            start(group)

    def _keys(self, name: str, more: dict[str, Any]) -> dict[str, Any]:
        keys = configuration(name, self.target, self.target, self._nats, **more)
        keys |= {
            "host": self._source.get("host", keys["host"]),
            "port": int(self._source["port"]),
            "dbname": self._source.get("dbname", "postgres"),
            "user": self._source.get("user", "postgres"),
        }
        return keys | ({"password": self._source["password"]} if "password" in self._source else {})

    def _joined_if_shared(self, names: list[str]) -> list[str]:
        """The publications that groups are to read."""
        self._publications, self._joined = names, None
        if len(names) == 1:
            return names
        with _source_of(self._keys("", {})) as connection:
            if not share_tables(connection, names):
                return names
            self._joined = JoinedPublication(f"joined_{self._suffix}_{uuid.uuid4().hex[:4]}", names)
            self._joined.write(connection)
        self._note(f"publications that share tables are joined: {', '.join(names)}")
        return [self._joined.name]

    def _set_publications(self, verb: str, names: list[str], options: dict[str, str]) -> None:
        before, known = list(self._groups), self._publications
        now = {"SET": names, "ADD": known + names, "DROP": [each for each in known if each not in names]}[verb]
        wanted = self._joined_if_shared(now)
        for publication in before:
            if publication not in wanted:
                self._remove(publication)
        for publication in wanted:
            if publication not in before:
                self._add(publication, options.get("copy_data", "true") in ("true", "on"))

    def _remove(self, publication: str) -> None:
        group = self._groups.pop(publication)
        stop(group)
        Outcome(PgsluiceProcess("drop", "--yes", config=group.keys), DEADLINE_S)
        group.__exit__(None, None, None)

    def _restart(self) -> None:
        """As a subscription's apply worker does when the subscription is altered."""
        for publication, group in list(self._groups.items()):
            stop(group)
            keys = self._keys(group.keys["group"], {key: group.keys[key] for key in ("publication", "check-interval")})
            keys |= {key: group.keys[key] for key in ("copy-and-stream", "stream", "origin") if key in group.keys}
            group.__exit__(None, None, None)
            self._groups[publication] = GroupUnderTest(keys)
            if self._is_enabled:
                start(self._groups[publication])


def _source_of(keys: dict[str, Any]) -> psycopg.Connection[tuple[Any, ...]]:
    """As superuser, whoever the group is there."""
    return psycopg.connect(host=keys["host"], port=keys["port"], user="postgres", dbname=keys["dbname"], autocommit=True)


def _group_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", name.lower())[:40]


def _slot(group: GroupUnderTest) -> str:
    return GroupNames(group.keys["group"]).slot


def start(group: GroupUnderTest) -> None:
    """Returns when the group has its slot, as CREATE SUBSCRIPTION does."""
    for process in (group.replicator, group.worker):
        if not process.is_running:
            process.start()
    keys = group.keys

    def has_begun() -> bool:
        check(group)
        with _source_of(keys) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active", [_slot(group)]
            )
            return found.fetchone() == (1,)

    wait_until(has_begun, deadline_s=START_DEADLINE_S, what=f"the slot of group {keys['group']}", interval_s=0.2)


def stop(group: GroupUnderTest) -> None:
    for process in (group.worker, group.replicator):
        if process.is_running:
            process.terminate()
    for process in (group.worker, group.replicator):
        if process.is_running:
            process.wait()


def check(group: GroupUnderTest) -> None:
    """Raises when a process of the group has ended by itself."""
    for process in (group.replicator, group.worker):
        if not process.is_running:
            lines = ("\n" + process.log()).partition("\npgsluice: ")[2].splitlines()
            raise AssertionError(f"the {process.role} of group {group.keys['group']} ended: {' '.join(lines[:6])}")


def catch_up(group: GroupUnderTest) -> None:
    name = group.keys["group"]
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn >= %s"
    with _source_of(group.keys) as connection:
        [lsn] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or [None]

        def is_published() -> bool:
            check(group)
            return connection.execute(query, [_slot(group), lsn]).fetchone() == (1,)

        wait_until(is_published, deadline_s=DEADLINE_S, what=f"all changes published by group {name}", interval_s=0.1)
    wait_until(lambda: is_applied(group), deadline_s=DEADLINE_S, what=f"all changes applied by group {name}", interval_s=0.1)


def is_applied(group: GroupUnderTest) -> bool:
    """Whether the worker has applied all of the stream, and the copies of all tables that are published."""
    check(group)
    broker = {key: group.keys[key] for key in ("group", "nats-url")}
    lag = _json(PgsluiceProcess("lag", "--max", "1h", "--json", config=broker))
    if not lag["workers"] or any(each["messages"] != 0 for each in lag["workers"]):
        return False
    if "stream" in group.keys:
        return True
    found = _json(PgsluiceProcess("tables", "list", "--json", config=broker))["tables"]
    ready = {each["table"] for each in found if each["phase"] == "ready"}
    return published(group) <= ready


def published(group: GroupUnderTest) -> set[str]:
    keys = group.keys
    query = "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s"
    with _source_of(keys) as connection:
        return {name for (name,) in connection.execute(query, [keys["publication"]])}


def _json(process: PgsluiceProcess) -> Any:
    with process:
        process.wait(DEADLINE_S)
        return json.loads(process.stdout())

"""``pgsluice up``: from an installed wheel and two URLs to replicated rows, on a terminal, and back to nothing that runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from tests.installed_wheel import REPOSITORY, build_wheel, make_environment
from tests.servers import Database, PgsluiceProcess, PostgresServer
from tests.terminal import Terminal
from tests.waiting import wait_until

SUPERUSER_PASSWORD = "of-the-superuser"
PASSWORD = "hünter/2@%:?#"
DEADLINE_S = 180.0


def documented_statements(heading: str) -> str:
    """The SQL of docs/how-to/configure.md below the heading, with our password."""
    page = (REPOSITORY / "docs" / "how-to" / "configure.md").read_text()
    block = re.search(r"```sql\n(.*?)```", page.partition(f"\n## {heading}\n")[2], re.DOTALL)
    assert block is not None
    return block[1].replace("'…'", f"'{PASSWORD}'")


@dataclass(frozen=True, slots=True)
class Shop:
    """Two databases on servers of their own, with the roles of the documentation."""

    source: Database
    target: Database

    def url(self, database: Database) -> str:
        return f"postgres://pgsluice:{quote(PASSWORD, safe='')}@127.0.0.1:{database.server.port}/{database.dbname}"

    @property
    def env(self) -> dict[str, str]:
        return {"PGSLUICE_SOURCE_URL": self.url(self.source), "PGSLUICE_TARGET_URL": self.url(self.target)}

    def insert(self, number: int) -> None:
        self.source.execute("INSERT INTO customers VALUES (%s, 'x')", [number])
        self.source.execute("INSERT INTO sales.orders VALUES (%s)", [number])

    def wait_for(self, count: int, terminal: Terminal) -> None:
        def have_arrived() -> bool:
            assert psutil.pid_exists(terminal.pid), terminal.text()
            if None in self.target.execute("SELECT to_regclass('customers')::oid, to_regclass('sales.orders')::oid")[0]:
                return False
            customers, orders = (self.target.execute(f"SELECT id FROM {table}") for table in ("customers", "sales.orders"))
            return len(customers) == len(orders) == count

        wait_until(have_arrived, deadline_s=DEADLINE_S, what=f"{count} rows in both tables of the target")


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with PostgresServer(password=SUPERUSER_PASSWORD) as there, PostgresServer(password=SUPERUSER_PASSWORD) as here:
        source, target = there.create_database("shop"), here.create_database("warehouse")
        for statement in (
            "CREATE ROLE shop_owner",
            "CREATE SCHEMA sales AUTHORIZATION shop_owner",
            "CREATE TABLE customers (id int PRIMARY KEY, name text)",
            "CREATE TABLE sales.orders (id int PRIMARY KEY)",
            "ALTER TABLE customers OWNER TO shop_owner",
            "ALTER TABLE sales.orders OWNER TO shop_owner",
            *filter(str.strip, re.sub("--.*", "", documented_statements("The source")).split(";")),
        ):
            source.execute(statement)
        target.execute(documented_statements("The target"))
        yield Shop(source, target)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    return make_environment(wheel, tmp_path_factory.mktemp("environment")) / "bin" / "pgsluice"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def children(pid: int) -> dict[str, psutil.Process]:
    """The processes that ``up`` started, by name."""
    found = {}
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(child.cmdline())
            name = "broker" if "nats-server" in words else "worker" if " worker " in words else "replicator"
            found[name] = child
    return found


def everything_below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_for_end(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []


def wait_for_children(terminal: Terminal, *, other_than: int = 0, name: str = "worker") -> psutil.Process:
    def found() -> psutil.Process | None:
        process = children(terminal.pid).get(name)
        return process if process is not None and process.pid != other_than else None

    process = wait_until(found, deadline_s=60, what=f"a {name}")
    assert process is not None
    return process


@pytest.mark.long
def test_from_an_empty_environment_to_rows_and_on_after_every_end(shop: Shop, program: Path, state: Path) -> None:
    arguments = ("up", "--tables", "customers,sales.*", "--state-dir", str(state))
    shop.insert(1)
    with Terminal(*arguments, env=shop.env, program=program) as terminal:
        terminal.wait_for("Continue as it is? [Y/n]")  # the source keeps WAL without a bound
        assert "max_slot_wal_keep_size" in terminal.text()
        terminal.type("\n")
        shop.wait_for(1, terminal)
        terminal.wait_for("group shop")  # the live screen
        for name in ("replicator", "worker", "broker"):  # each comes back
            process = wait_for_children(terminal, name=name)
            process.kill()
            wait_for_children(terminal, other_than=process.pid, name=name)
        shop.insert(2)
        shop.wait_for(2, terminal)
        processes = everything_below(terminal.pid)
        terminal.type("\x03")
        assert terminal.wait(90) == 0, terminal.text()
        wait_for_end(processes)
        assert terminal.echoes
        assert b"stopping: current work is finished first" in terminal.written
        assert PASSWORD.encode() not in terminal.written
        assert quote(PASSWORD, safe="").encode() not in terminal.written
    shop.insert(3)
    taken = int((state / "nats.port").read_text())
    with socket.socket() as somebody:  # the broker moves, and both processes with it
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        somebody.bind(("127.0.0.1", taken))
        somebody.listen()
        with Terminal(*arguments, env=shop.env, program=program) as terminal:
            shop.wait_for(3, terminal)
            assert int((state / "nats.port").read_text()) != taken
            processes = everything_below(terminal.pid)
            terminal.send(signal.SIGKILL)  # nobody is left to end the others
            terminal.wait(30)
            wait_for_end(processes)
    shop.insert(4)
    with Terminal(*arguments, env=shop.env, program=program) as terminal:
        shop.wait_for(4, terminal)
        processes = everything_below(terminal.pid)
        terminal.type("\x03")
        terminal.type("\x03")
        assert terminal.wait(60) in (0, 130), terminal.text()
        wait_for_end(processes)
    assert secrets_in(state) == []


def secrets_in(state: Path) -> list[Path]:
    words = [PASSWORD.encode(), quote(PASSWORD, safe="").encode()]
    files = [path for path in state.rglob("*") if path.is_file() and path.suffix in (".log", ".yaml", ".conf")]
    assert {path.suffix for path in files} == {".log", ".yaml", ".conf"}
    return [path for path in files if any(word in path.read_bytes() for word in words)]


def test_what_cannot_work_is_one_sentence_and_nothing_is_left(shop: Shop, state: Path) -> None:
    wrong = f"postgres://pgsluice:wr%6Fng-secret@127.0.0.1:{shop.source.server.port}/shop"
    arguments = ("up", "--worker", "file", "--file-output-dir", str(state / "out"), "--state-dir", str(state))
    with PgsluiceProcess(*arguments, env={"PGSLUICE_SOURCE_URL": wrong}) as process:
        found: dict[int, psutil.Process] = {}

        def is_over() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update((each.pid, each) for each in everything_below(process.pid))
            return not process.is_running

        wait_until(is_over, deadline_s=90, what="the end of up")
        assert process.wait() == 70
        log = process.log()
    assert found
    wait_for_end(list(found.values()))
    assert "refuses user 'pgsluice'" in log
    assert log.splitlines()[-1].startswith("pgsluice: the check found errors: fix them")
    assert "wrong-secret" not in log
    assert "wr%6Fng" not in log
    assert "Traceback" not in log


def test_a_process_that_needs_a_person_ends_everything_with_its_sentence(shop: Shop, state: Path) -> None:
    with PgsluiceProcess(
        "up", "--group", "nowhere", "--worker", "nowhere:Sink", "--state-dir", str(state), env=shop.env
    ) as process:
        assert process.wait(90) == 2, process.log()
        sentence = process.log().splitlines()[-1]
    assert sentence.startswith(
        "pgsluice: the worker ended with exit code 2: sink nowhere:Sink cannot be loaded: there is no module"
    )


def test_one_of_a_directory_and_a_clean_end_though_nobody_reads_what_it_says(shop: Shop, state: Path) -> None:
    program = [sys.executable, "-m", "pgsluice.console.program"]
    arguments = [
        "up",
        "--group",
        "lonely",
        "--worker",
        "file",
        "--file-output-dir",
        str(state / "out"),
        "--state-dir",
        str(state),
    ]
    env = os.environ | shop.env | {"HOME": str(state.parent)}
    with subprocess.Popen([*program, *arguments], cwd=REPOSITORY, env=env, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"replicator and worker file start" not in process.stderr.readline():
            assert process.poll() is None
        second = subprocess.run([*program, *arguments], cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60)
        assert second.returncode == 70
        assert f"another 'pgsluice up' (process {process.pid}) uses {state}" in second.stderr
        process.stderr.close()
        wait_until(lambda: (state / "replicator.log").exists() and "replicating" in (state / "replicator.log").read_text())
        processes = everything_below(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        wait_for_end(processes)
    shop.source.execute("SELECT pg_drop_replication_slot('pgsluice_lonely')")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no source is given: give --source postgres://user@host:5432/dbname, or set PGSLUICE_SOURCE_URL"),
        (("--source", "postgres://a@b/c"), "no target is given: give --target postgres://user@host:5432/dbname"),
        (("--source", "postgres://a:hunter2@b@c/d"), "source-url (--source-url) is not the URL of a database"),
        (("--source", "postgres://a@b/c", "--worker", "kinesis"), "there is no sink 'kinesis': the sinks are "),
        (("--source", "postgres://a@b/c", "--worker", "file"), "file-output-dir is not set"),
        (("--source", "postgres://a@b/c", "--worker", "stdout", "--copy"), "mode copy, copy (--copy), ends after the copy"),
        (
            ("--source", "postgres://a@b/c", "--worker", "stdout", "--metrics-listen", "127.0.0.1:9464"),
            "metrics-listen (--metrics-listen) is one address, and replicator and worker need one each: give port 0",
        ),
        (("--source", "postgres://b/c", "--target", "postgres://a@b/c"), "user is not set"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    command = [sys.executable, "-m", "pgsluice.console.program", "up", "--state-dir", str(tmp_path / "state"), *arguments]
    ended = subprocess.run(command, cwd=REPOSITORY, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"pgsluice: {sentence}"), ended.stderr
    assert "hunter2" not in ended.stderr
    assert not (tmp_path / "state").exists()


def test_the_printed_configuration_is_what_other_commands_read(shop: Shop, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pgsluice.console.program"]
    env = os.environ | shop.env | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state-home")}
    printing = [*command, "up", "--tables", "customers", "--print-config"]
    printed = subprocess.run(printing, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True).stdout
    assert "${PGSLUICE_PASSWORD}" in printed
    assert PASSWORD not in printed
    (tmp_path / "pgsluice.yaml").write_text(printed)
    listed = subprocess.run(
        [*command, "ddl", "sql", "--config", str(tmp_path / "pgsluice.yaml")],
        cwd=REPOSITORY,
        env=os.environ | {"HOME": str(tmp_path), "PGSLUICE_PASSWORD": PASSWORD},
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    token = tmp_path / "state-home" / "pgsluice" / "up" / "shop" / "nats.token"
    assert f"nats-token-file: {token}" in printed
    assert token.stat().st_mode & 0o777 == 0o600

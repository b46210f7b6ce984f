"""A group whose tasks run on other machines: a standalone Spark cluster in network namespaces, without our checkout on its disks.

``make test-spark-cluster`` runs it.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.machines import PREFIX, MachineNetwork
from tests.servers.program import REPOSITORY
from tests.servers.spark_cluster import SparkCluster, SparkMachine, command_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(900)]

FIT = "executors are fit"
WAITING = "waiting for Spark executors"
TRANSACTIONS_BETWEEN = 20
CATCH_UP_DEADLINE_S = 300.0


@pytest.fixture
def cluster(network: MachineNetwork) -> Iterator[SparkCluster]:
    """Without machines yet."""
    with SparkCluster(network) as cluster:
        yield cluster


@pytest.fixture
def keys(
    group: str, source_database: Database, target_database: Database, nats_server: NatsServer, cluster: SparkCluster
) -> dict[str, Any]:
    keys = configuration(group, source_database, target_database, nats_server)
    return keys | {"spark": cluster.settings(), "copy-and-stream": True}


def test_a_group_outlives_executors_and_a_machine_of_its_cluster(
    cluster: SparkCluster, source_database: Database, target_database: Database, keys: dict[str, Any]
) -> None:
    first, second = cluster.machines
    first.start()
    second.start()
    RandomLoad.create_tables(source_database)
    source_database.execute(
        "INSERT INTO items SELECT n % 7, 'old' || n, repeat(md5(n::text), 60), 'copied' FROM generate_series(1, 10000) n"
    )
    load = RandomLoad(source_database, seed=20261123, connections=2, most_rows=500)
    with load, GroupUnderTest(keys | {"copy-range-bytes": "512KiB"}) as under_test:
        replicator, worker = under_test.replicator, under_test.worker
        replicator.wait_for_log("copying tables", deadline_s=180)
        kill_executor(first)
        worker.wait_for_log(FIT, deadline_s=180)
        replicator.wait_for_log("copy is finished", deadline_s=300)
        wait_until(lambda: rows(target_database, "items") > 0, deadline_s=180, what="copied rows at the target")
        check_executors_are_strangers(cluster)

        for machine in cluster.machines:
            kill_executor(machine)
            await_transactions(load)
        second.kill()
        await_transactions(load)
        first.kill()
        second.start()
        await_transactions(load)
        load.stop()
        wait_until(
            lambda: checksums(source_database) == checksums(target_database),
            deadline_s=CATCH_UP_DEADLINE_S,
            what="equal tables",
            interval_s=1.0,
        )
        assert worker.is_running, worker.log()[-4000:]
        assert replicator.is_running, replicator.log()[-4000:]
        for process in (worker, replicator):
            process.terminate()
        assert (worker.wait(), replicator.wait()) == (0, 0), worker.log()[-4000:]
        assert "copy is finished  tables=5 errored=0" in replicator.log()


def check_executors_are_strangers(cluster: SparkCluster) -> None:
    """To our checkout; and strangers to them learn nothing from their arguments."""
    for machine in cluster.machines:
        assert machine.executors(), "tasks run on each machine"
        for process in machine.processes():
            assert cluster.secret not in " ".join(command_of(process))
        daemons = [each for each in machine.processes() if any("spark_daemon" in word for word in command_of(each))]
        assert daemons
        for daemon in daemons:
            shipped = [path for path in daemon.environ()["PYTHONPATH"].split(":") if path.startswith("pgsluice-")]
            assert [Path(path).suffix for path in shipped] == [".zip"]
            assert not Path(f"/proc/{daemon.pid}/root{REPOSITORY}/pgsluice").exists()


def test_a_copy_and_a_worker_leave_each_other_cores_on_a_cluster_that_has_enough(
    cluster: SparkCluster, source_database: Database, target_database: Database, keys: dict[str, Any]
) -> None:
    """Nobody set ``spark.cores.max``. The stream has no room for all of the copy, so each needs the other to go on."""
    first, second = cluster.machines
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source_database.execute("INSERT INTO t SELECT n, repeat('v', 1000) FROM generate_series(1, 40000) n")
    keys |= {"stream-max-bytes": "16MiB", "copy-range-bytes": "512KiB"}
    with GroupUnderTest(keys) as under_test:
        for process in (under_test.worker, under_test.replicator):
            process.wait_for_log(WAITING, deadline_s=120)
        first.start()
        second.start()
        under_test.replicator.wait_for_log("copy is finished", deadline_s=180)
        wait_until(lambda: rows(target_database, "t") == 40000, deadline_s=120, what="copied rows")


def test_processes_that_wait_for_a_machine_say_so_and_obey_sigterm(source_database: Database, keys: dict[str, Any]) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with GroupUnderTest(keys) as under_test:
        for process in (under_test.replicator, under_test.worker):
            process.wait_for_log(WAITING, deadline_s=120)
        for process in (under_test.worker, under_test.replicator):
            process.terminate()
        assert (under_test.worker.wait(), under_test.replicator.wait()) == (0, 0)


HIDDEN_LIBRARY = PREFIX / Path(nats.__path__[0]).relative_to(sys.prefix)


@pytest.mark.parametrize("case", ["python", "library", "file"])
def test_what_an_executor_lacks_is_said_in_one_sentence_at_the_start(
    cluster: SparkCluster, source_database: Database, keys: dict[str, Any], tmp_path: Path, case: str
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    certificate = tmp_path / "root.crt"
    certificate.touch()
    more: dict[str, dict[str, Any]] = {
        "python": {"spark": cluster.settings(python="/opt/none/python")},
        "file": {"target-sslrootcert": str(certificate)},
    }
    sentence = {
        "python": "cannot run /opt/none/python",
        "library": "has no Python module nats",
        "file": f"cannot read {certificate}",
    }[case]
    cluster.machines[0].start(hidden=[str(HIDDEN_LIBRARY)] if case == "library" else [])
    with GroupUnderTest(keys | more.get(case, {})) as under_test:
        assert under_test.worker.wait(deadline_s=240) == 75
        last = under_test.worker.log().splitlines()[-1]
    assert sentence in last
    assert "executor" in last
    assert "Traceback" not in last


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_file_sink_refuses_a_directory_that_executors_do_not_share(
    cluster: SparkCluster, source_database: Database, keys: dict[str, Any], is_shared: bool
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source_database.execute("INSERT INTO t SELECT n, repeat('v', 200) FROM generate_series(1, 3000) n")
    cluster.machines[0].start()
    del keys["target-host"], keys["target-port"], keys["target-dbname"], keys["target-user"], keys["target-password"]
    with tempfile.TemporaryDirectory(dir="/var/tmp" if is_shared else "/tmp") as output:
        keys |= {"file-output-dir": output, "file-rotate-age": "1s"}
        with PgsluiceProcess("replicator", config=keys), PgsluiceProcess("worker", "file", config=keys) as worker:
            if is_shared:
                wait_until(lambda: lines(Path(output)) == 3000, deadline_s=240, what="copied rows in a file")
                return
            assert worker.wait(deadline_s=240) == 70
            last = worker.log().splitlines()[-1]
    assert f"a Spark task on {socket.gethostname()} does not find {output}/" in last
    assert "give a file-output-dir that all machines share" in last


def lines(directory: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in directory.glob("*.jsonl"))


def kill_executor(machine: SparkMachine) -> None:
    wait_until(machine.executors, deadline_s=120, what="an executor")[0].kill()


def await_transactions(load: RandomLoad) -> None:
    before = load.transactions
    wait_until(lambda: load.transactions >= before + TRANSACTIONS_BETWEEN, what="more transactions")


def rows(database: Database, table: str) -> int:
    if database.execute(f"SELECT to_regclass('{table}')") == [(None,)]:
        return 0
    return int(database.execute(f"SELECT count(*) FROM {table}")[0][0])

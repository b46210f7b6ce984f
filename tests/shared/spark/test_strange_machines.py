"""Spark starts where others have set up a Spark of theirs, or the error says what hinders it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers.program import REPOSITORY

START = """
import sys
from pgsluice.shared.spark.session import Spark
settings = {"spark.driver.memory": "512m"} | dict(pair.split("=") for pair in sys.argv[1:])
spark = Spark("test", settings, "pgsluice.worker.spark_daemon")
try:
    spark.start()
    print("started:", spark.run_tasks(sorted, [[3, 1]]))
except Exception as error:
    print(f"failed: {error}")
finally:
    spark.close()
"""


def started(*program: str, settings: Sequence[str] = (), **variables: str) -> str:
    """What a process says that starts Spark and runs a task."""
    command: Sequence[str] = [*program, sys.executable, "-c", START, *settings]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return ended.stdout.strip()


WARN = """
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import LogSettings
from pgsluice.shared.spark.session import Spark
from tests.shared.spark.warning_task import warn
telemetry.set_up(LogSettings("WARNING", "text"))
spark = Spark("test", {"spark.driver.memory": "512m"}, "pgsluice.worker.spark_daemon")
try:
    spark.start()
    spark.run_tasks(warn, ["public.t"])
finally:
    spark.close()
"""


def test_what_a_task_warns_of_is_a_warning_of_the_process_that_runs_it() -> None:
    command, environment = [sys.executable, "-c", WARN], os.environ | {"PYTHONPATH": str(REPOSITORY)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stderr
    [line] = [line for line in said.splitlines() if "a column becomes text" in line]
    assert line.split(maxsplit=1)[1] == "WARNING tests.shared.spark.warning_task  a column becomes text  table=public.t"


def test_what_is_set_for_a_spark_of_others_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://nowhere:7077\nspark.driver.memory wrong\n")
    (tmp_path / "spark-env.sh").write_text("exit 3\n")
    kerberos = "<property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{kerberos}</configuration>\n")
    said = started(
        SPARK_HOME=str(tmp_path),
        SPARK_CONF_DIR=str(tmp_path),
        SPARK_LOCAL_DIRS="/nowhere",
        SPARK_LOCAL_HOSTNAME="nowhere.invalid",
        SPARK_LAUNCHER_OPTS="-XX:+NoSuchOption",
        SPARK_SUBMIT_OPTS="-XX:+NoSuchOption",
        HADOOP_CONF_DIR=str(tmp_path),
        PYSPARK_SUBMIT_ARGS="--master spark://nowhere:7077 their.py",
    )
    assert said == "started: [1, 3]"


STRANGE = {
    "a name without an address": "hostname nowhere.invalid",
    "shared memory that nobody may write": "mount -t tmpfs -o ro none /dev/shm",
    "temporary files that may not be run": "mount -t tmpfs -o noexec,mode=1777 none /tmp",
    "a home that is not there": "export HOME=/nowhere",
    "a home that is read only": "mount -t tmpfs -o ro none /mnt; export HOME=/mnt; cd /mnt",
    "a locale of ASCII": "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
    "another zone": "export TZ=Pacific/Chatham",
    "a proxy": "export http_proxy=http://192.0.2.1:3128 https_proxy=http://192.0.2.1:3128 all_proxy=socks5://192.0.2.1:1080",
    "options of Java": "export JAVA_TOOL_OPTIONS='-Djava.net.preferIPv6Addresses=true -Dfile.encoding=ISO-8859-1'",
}
NETWORKS = {
    "no network but the loopback": "ip link set lo up",
    "addresses of version 6 only": "ip link set lo up; ip link add eth0 type veth; ip addr add 2001:db8::7/64 dev eth0;"
    " ip link set eth0 up",
    "a name with several addresses": "ip link set lo up; ip link add eth0 type veth; ip addr add 192.0.2.7/24 dev eth0;"
    " ip addr add 198.51.100.7/24 dev eth0; ip link set eth0 up; hostname several; mount -t tmpfs none /mnt;"
    " printf '%s several\\n' 203.0.113.7 2001:db8::7 192.0.2.7 198.51.100.7 > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts",
}


def on_a_machine_with(*commands: str, has_network: bool = True) -> str:
    spaces = ("unshare", "--map-root-user", "--uts", "--mount", *(() if has_network else ("--net",)))
    return started(*spaces, "sh", "-ec", "; ".join((*commands, 'exec "$@"')), "sh")


@pytest.mark.long  # Spark starts for each
@pytest.mark.parametrize("command", STRANGE.values(), ids=STRANGE)
def test_spark_runs_on_a_machine_with(command: str) -> None:
    assert on_a_machine_with(command) == "started: [1, 3]"


def test_spark_runs_on_a_machine_with_all_of_it_at_once() -> None:
    assert on_a_machine_with(*STRANGE.values()) == "started: [1, 3]"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
@pytest.mark.parametrize("command", NETWORKS.values(), ids=NETWORKS)
def test_spark_runs_on_a_machine_that_has(command: str) -> None:
    assert on_a_machine_with(command, has_network=False) == "started: [1, 3]"


def test_a_user_without_an_account_is_told() -> None:
    said = started("unshare", "--map-user=54321")
    assert said.startswith("failed: Spark did not start (")
    assert "user id 54321 has no account on this machine: run it as a user that has" in said


def test_what_the_jvm_says_when_it_does_not_start_is_in_the_error() -> None:
    assert started(JAVA_TOOL_OPTIONS="-Dstore.password=hunter2 -XX:+NoSuchOption").splitlines()[:4] == [
        "failed: Spark did not start (Unrecognized VM option 'NoSuchOption'): check the settings under 'spark' and the variable"
        " JAVA_TOOL_OPTIONS, then start again. Spark's last lines:",
        "  Picked up JAVA_TOOL_OPTIONS: -Dstore.password=*** -XX:+NoSuchOption",
        "  Unrecognized VM option 'NoSuchOption'",
        "  Error: Could not create the Java Virtual Machine.",
    ]


def test_what_spark_says_of_a_setting_in_a_jvm_that_runs_is_in_the_error() -> None:
    said = started(settings=["spark.driver.port=my-secret", "spark.my.secret=my-secret"])
    assert "failed: Spark did not start (SparkIllegalArgumentException: [INVALID_CONF_VALUE" in said
    assert "Spark's last lines:\n  ERROR SparkContext: Error initializing SparkContext.\n" in said
    assert "The value '***' in the config" in said
    assert "my-secret" not in said


def test_without_a_place_for_temporary_files_the_error_names_the_variable() -> None:
    nowhere = "; ".join(f"mount -t tmpfs -o ro none {place}" for place in ("/tmp", "/var/tmp", "/dev/shm"))
    assert on_a_machine_with(nowhere, "cd /proc") == (
        "failed: Spark did not start, because no temporary directory can be made (No usable temporary directory found in"
        " ['/tmp', '/var/tmp', '/usr/tmp', '/proc']): let TMPDIR name a directory that this user may write to, on a disk"
        " with free space"
    )

"""Spark that outlives the process it works for: its JVM is lent to one ``pgsluice`` process after the other.

A process that starts Spark itself spends 2.5 s of CPU on that. A forked process (``fork_server``) borrows a JVM instead: it
connects to the lender, which is a thread of the tests' process, and says which settings it wants. One process has a JVM at a
time. It gives it back when it closes Spark; where the connection ends before, the process was killed, and the JVM dies with it as
the program's own does. What is configured otherwise than by ``_LENDABLE`` is not borrowed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.child import HOST, ChildProcess, PrivateDirectory
from tests.waiting import wait_until

LENDER = "PGSLUICE_TEST_LENDER"
"""The variable with the path of the lender's socket."""

_JVM = "PGSLUICE_TEST_JVM"
_PORT = "PYSPARK_GATEWAY_PORT"
_START_DEADLINE_S = 60.0
_MOST_WAITING = 2
"""Of a kind, for a process to come."""
_DONE = b"done\n"
_LENDABLE = {"spark.master", "spark.driver.memory", "spark.executor.memory", "spark.python.daemon.module"}


class HeldSpark:
    """A JVM with a SparkContext, held by a process of its own."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._directory = PrivateDirectory("jvm")
        self._told = self._directory.path / "told"
        self._holder = ChildProcess(
            [sys.executable, "-c", "from tests.servers.lent_spark import hold; hold()", json.dumps(settings)],
            log_path=self._directory.path / "log",
            stdout_path=self._told,
            cwd=self._directory.path,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "HOME": str(self._directory.path)},
        )

    def variables(self) -> str:
        """By which PySpark and ``_borrow`` find it, as JSON. Waits until Spark has started."""
        return wait_until(self._line, deadline_s=_START_DEADLINE_S, what="Spark that is lent")

    def _line(self) -> str | None:
        if self._holder.poll() is not None:
            raise RuntimeError(f"Spark did not start: {(self._directory.path / 'log').read_text()}")
        text = self._told.read_text()
        return text if text.endswith("\n") else None

    @property
    def is_usable(self) -> bool:
        """Whether its JVM answers, which may have been killed while nobody had it."""
        with socket.socket() as probe:
            return self._holder.poll() is None and probe.connect_ex((HOST, int(json.loads(self.variables())[_PORT]))) == 0

    def end(self) -> None:
        self._holder.kill()
        self._directory.remove()


class Lender:
    """Started when the first process is that may borrow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: defaultdict[str, list[HeldSpark]] = defaultdict(list)
        self._directory: PrivateDirectory | None = None

    @property
    def address(self) -> str:
        with self._lock:
            if self._directory is None:
                self._directory = PrivateDirectory("lender")
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(self._path)
                listener.listen()
                threading.Thread(target=self._accept, args=(listener,), name="spark-lender", daemon=True).start()
            return self._path

    @property
    def _path(self) -> str:
        assert self._directory is not None
        return str(self._directory.path / "socket")

    def _accept(self, listener: socket.socket) -> None:
        while True:
            borrower, _ = listener.accept()
            threading.Thread(target=self._lend, args=(borrower,), name="spark-loan", daemon=True).start()

    def _lend(self, borrower: socket.socket) -> None:
        with borrower, borrower.makefile("rb") as said:
            wanted = said.readline().decode()
            spark, is_given_back = self._take(wanted), False
            try:
                borrower.sendall(spark.variables().encode())
                is_given_back = said.readline() == _DONE
            except (BrokenPipeError, ConnectionResetError):
                pass  # the borrower was killed before it read, or before it could be told
            finally:
                if is_given_back:
                    self._keep(wanted, spark)
                else:
                    spark.end()

    def _take(self, wanted: str) -> HeldSpark:
        with self._lock:
            while waiting := self._waiting[wanted]:
                spark = waiting.pop()
                if spark.is_usable:
                    return spark
                spark.end()
        return HeldSpark(json.loads(wanted))

    def _keep(self, wanted: str, spark: HeldSpark) -> None:
        with self._lock:
            waiting = self._waiting[wanted]
            if len(waiting) < _MOST_WAITING:
                waiting.append(spark)
                return
        spark.end()


lender = Lender()


def is_running(pid: int) -> bool:
    """Whether there is such a process which is not merely waiting for its parent to see that it ended (proc(5), ``stat``)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class _BorrowedJvm:
    """What of ``subprocess.Popen`` the program uses of its JVM, of one that is another's child."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and not is_running(self.pid):
            self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("java", timeout)
            time.sleep(0.005)
        return code


def borrow_from_now_on(address: str, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """In this process starting Spark becomes borrowing it from the lender at ``address``, and closing it giving it back."""
    from pgsluice.shared.spark.session import Spark, configuration

    start, close = Spark.start, Spark.close
    loans: dict[int, socket.socket] = {}

    def start_or_borrow(spark: Spark) -> None:
        defaults = configuration({})
        own = {key: value for key, value in spark._configuration.items() if defaults.get(key) != value}
        of_the_jvm = {key: value for key, value in own.items() if not key.startswith("spark.executorEnv.")}
        if of_the_jvm.keys() - _LENDABLE or not of_the_jvm.get("spark.master", "local").startswith("local"):
            start(spark)
        else:
            loans[id(spark)] = _borrow(spark, of_the_jvm, address)

    def close_or_give_back(spark: Spark, patience_s: float = 10.0) -> int | None:
        if id(spark) not in loans:
            return close(spark, patience_s)
        return _give_back(spark, loans.pop(id(spark)))

    replace(Spark, "start", start_or_borrow)
    replace(Spark, "close", close_or_give_back)


def _borrow(spark: Any, settings: Mapping[str, str], address: str) -> socket.socket:
    import tempfile

    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    from pgsluice.shared.process.private_directory import make_private_directory
    from pgsluice.shared.spark import session
    from pgsluice.shared.spark.gateway_habits import forgo_numpy, log_broken_connection, spare_calls
    from pgsluice.shared.spark.python_program import choose_python

    loan = socket.socket(socket.AF_UNIX)
    loan.connect(address)
    loan.sendall(json.dumps(settings, sort_keys=True).encode() + b"\n")
    with loan.makefile("rb") as told:
        variables: dict[str, str] = json.loads(told.readline())
    spark._scratch = make_private_directory(session._SHARED_MEMORY, session._DIRECTORY_PREFIX)
    spark._temporary = make_private_directory(Path(tempfile.gettempdir()), session._DIRECTORY_PREFIX)
    choose_python(spark._configuration)
    os.environ |= variables
    try:
        spark._gateway = launch_gateway()
    finally:
        for name in variables:
            del os.environ[name]
    spark._process = _BorrowedJvm(int(variables[_JVM]))
    forgo_numpy(spark._gateway._gateway_client)
    jvm = spark._gateway.jvm
    running = jvm.org.apache.spark.api.java.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    wanted = SparkConf(loadDefaults=False, _jvm=jvm)
    for key, value in {**spark._configuration, "spark.app.name": "borrowed"}.items():
        wanted.set(key, value)
    spark.context = SparkContext(conf=wanted, gateway=spark._gateway, jsc=running)
    spare_calls(spark.context, spark._gateway)
    spark.context._accumulatorServer.handle_error = log_broken_connection
    return loan


def _give_back(spark: Any, loan: socket.socket) -> int | None:
    from pyspark import SparkContext

    spark.expect_end()
    # It looks once a second whether it is to end; one that was merely closed would look for ever, without a pause.
    threading.Thread(target=spark.context._accumulatorServer.shutdown, name="spark-accumulators", daemon=True).start()
    with loan:
        if spark._process.poll() is None:
            spark.context.cancelAllJobs()
            spark._gateway.close()
            loan.sendall(_DONE)
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    for directory in (spark._scratch, spark._temporary):
        directory.close()
    return 0


def hold() -> None:
    """What the process that holds a JVM runs, until it is killed; its argument is the JVM's settings."""
    from pgsluice.shared.spark.session import Spark

    settings: dict[str, str] = json.loads(sys.argv[1])
    spark = Spark("lent", settings, settings["spark.python.daemon.module"])
    spark.start()
    parameters = spark._gateway.gateway_parameters
    variables = {
        _PORT: str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        _JVM: str(spark.process_id),
    }
    print(json.dumps(variables), flush=True)
    signal.pause()

"""Starting Spark, quietly and for a small machine, and stopping it.

Everything the JVM and its Python workers print goes to the log: standard output belongs to the stdout sink, and
standard error is one log. Settings of the user's configuration (``spark:``) win over the defaults here.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import NoOpSerializer
from pyspark.util import _load_from_socket

from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TransientError
from pgsluice.shared.process.private_directory import PrivateDirectory, make_private_directory
from pgsluice.shared.spark import class_archive
from pgsluice.shared.spark.failure import failure_reason, jvm_ended, no_directory, secrets_of, start_error, without_secrets
from pgsluice.shared.spark.filed_results import FiledTask, filed_results
from pgsluice.shared.spark.gateway_habits import (
    end_accumulators_meanwhile,
    forgo_numpy,
    ignore_stop_signals,
    log_broken_connection,
    spare_calls,
)
from pgsluice.shared.spark.python_program import choose_python, leave_out_other_sparks
from pgsluice.shared.spark.shipped_code import ship_code
from pgsluice.shared.spark.spark_settings import DEFAULT_MASTER, is_local

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  what Spark writes is scratch: in memory, where the system has such a place
_DIRECTORY_PREFIX = "pgsluice-spark-"
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

_INEVITABLE = ("WARNING: Using incubator modules",)
"""Lines the JVM prints at every start whatever its settings."""

DEFAULTS = {
    "spark.master": DEFAULT_MASTER,
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Every user of the machine may connect to the ports of Spark, which give away what tasks are given. With a local master
    # Spark makes the secret itself.
    "spark.authenticate": "true",
    # Between the JVM and its Python processes; over TCP a job takes 40 ms more. The sockets are in a private directory.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.task.maxFailures": "4",
    "spark.eventLog.enabled": "false",
    "spark.cleaner.periodicGC.interval": "10min",
    "spark.locality.wait": "0s",
    # Of the executor that is in the driver's own JVM: they cost a worker at rest a fifth of what it costs at all.
    "spark.executor.heartbeatInterval": "30s",
}

_MASTER_DEPENDENT = {"spark.driver.host", "spark.driver.bindAddress", "spark.authenticate", "spark.executor.heartbeatInterval"}
"""Defaults for a local master only: executors on other machines must reach the driver, their cluster has its own secret
(``shared.config`` has checked that it is used), and the driver learns from heartbeats that they are gone."""

JAVA_OPTIONS_KEY = "spark.driver.extraJavaOptions"

_AT_LAUNCH = (
    "spark.driver.memory",
    "spark.driver.extraClassPath",
    "spark.jars",
    "spark.jars.packages",
)
"""Settings that the JVM needs before it starts. The rest is set later, so that no other setting is in the process list."""

JAVA_OPTIONS = (
    f'"-Dlog4j2.configurationFile=file:{_LOG_CONFIGURATION}"',
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xss4m",
    # The heap begins small, and returns unused memory; it would begin with a 64th of the machine's memory. The residue
    # of a job is a megabyte: many jobs fit into 16.
    "-Xms64m",
    "-Xmn16m",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=25",
)

_OWN_PROCESS = {"stderr": subprocess.STDOUT, "bufsize": 0, "start_new_session": True}
"""Options of the JVM's process: its output is captured, and signals to pgsluice's process group (Ctrl-C, ``kill --
-PGID``) do not reach it."""

log = telemetry.logger(__name__)


def configuration(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns Spark's configuration: the defaults, overridden by ``settings`` (under Spark's own names)."""
    merged = DEFAULTS | dict(settings)
    if not is_local(merged["spark.master"]):
        for key in _MASTER_DEPENDENT - settings.keys():
            del merged[key]
    options = merged.get(JAVA_OPTIONS_KEY, "")
    merged[JAVA_OPTIONS_KEY] = " ".join((*JAVA_OPTIONS, *class_archive.options_to_use(options), options)).strip()
    return merged


_KEPT_LINES = 50
"""Number of the JVM's last output lines that are kept: the reason of a failed start is among them."""

_DEATH_S = 0.5
"""Time that a killed process may still seem alive after its connections broke."""


_SOCKETS_KEY = "spark.python.unix.domain.socket.enabled"
_SOCKET_DIRECTORY_KEY = "spark.python.unix.domain.socket.dir"
_LONGEST_SOCKET_DIRECTORY = 64
"""A socket's path has 107 bytes at most (unix(7)), and PySpark calls a socket ``.<UUID>.sock``."""

_PIECE_BYTES = 6000
"""Size of a piece of results. The JVM writes an answer of more than 8 KiB (of base64) in two pieces, and the kernel
keeps the second one back until the first is acknowledged, which takes it 40 ms (Nagle's algorithm, RFC 896, and delayed
acknowledgements, RFC 1122)."""

T = TypeVar("T")
U = TypeVar("U")


class Spark:
    """Spark core with its JVM and its private directories; no SQL, which costs half as much again as all the rest.
    ``close`` ends them all. When this process dies, so does the JVM; the next one takes the directories away. Nothing
    else ends the JVM but SIGKILL: a signal that stops all of pgsluice's processes must leave the JVM to this process,
    which has a batch to finish."""

    def __init__(self, application: str, settings: Mapping[str, str], daemon_module: str) -> None:
        """``daemon_module`` is what Spark runs to fork Python workers from."""
        self._application = application
        self._configuration = configuration({"spark.python.daemon.module": daemon_module} | dict(settings))
        self._scratch: PrivateDirectory | None = None
        self._temporary: PrivateDirectory | None = None
        self._gateway: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self._secrets = secrets_of(self._configuration)
        self._output: threading.Thread
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.context: SparkContext
        self.code = ""
        """The name under which executors on other machines got the code; "" with a local master."""
        self._parallelism: int | None = None
        self._partitions: dict[int, RDD[int]] = {}
        """Number of partitions → an empty RDD, made once: each job's tasks are derived from it."""

    def start(self) -> None:
        """Blocks for the seconds that a JVM takes. Raises TransientError when Spark does not start."""
        is_here = is_local(self._configuration["spark.master"])
        try:
            temporary = Path(tempfile.gettempdir())
            if is_here:
                scratch = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else temporary
                self._scratch = make_private_directory(scratch, _DIRECTORY_PREFIX)
            self._temporary = make_private_directory(temporary, _DIRECTORY_PREFIX)
        except OSError as error:
            raise no_directory(error) from None
        launch = SparkConf(loadDefaults=False)
        for key in _AT_LAUNCH:
            if key in self._configuration:
                launch.set(key, self._configuration[key])
        # Not the scratch: the JVM unpacks libraries there, which the system may forbid to run from shared memory.
        launch.set(JAVA_OPTIONS_KEY, f'"-Djava.io.tmpdir={self._temporary.path}" {self._configuration[JAVA_OPTIONS_KEY]}')
        choose_python(self._configuration)
        leave_out_other_sparks(is_local=is_here)
        gateway = self._launch(launch)
        self._gateway, self._process = gateway, gateway.proc
        try:
            forgo_numpy(gateway._gateway_client)
            ignore_stop_signals(gateway.jvm)
            self.context = SparkContext(conf=self._session_configuration(gateway.jvm), gateway=gateway)
            if not is_here:
                self.code = ship_code(self.context, self._temporary.path)
            spare_calls(self.context, gateway)
        except (Py4JError, OSError) as error:
            raise self._start_error(error) from None
        # It would print a traceback when the JVM is killed; the code that needs the JVM reports it.
        self.context._accumulatorServer.handle_error = log_broken_connection

    def _launch(self, conf: SparkConf) -> Any:
        """Launches the JVM. PySpark keeps the process to itself when it fails, so its output goes through a separate
        pipe."""
        read, written = os.pipe()
        self._output = threading.Thread(target=self._log_lines, args=(os.fdopen(read, "rb"),), name="spark-output", daemon=True)
        self._output.start()
        try:
            return launch_gateway(conf, {**_OWN_PROCESS, "stdout": written})
        except (PySparkException, Py4JError, OSError) as error:
            os.close(written)
            written = -1
            raise self._start_error(error) from None
        finally:
            if written >= 0:
                os.close(written)

    def _start_error(self, error: Exception) -> TransientError:
        self._output.join(_DEATH_S)  # of a JVM that is dead or has said why; its last lines may still be on their way
        return start_error(error, [*self._last_lines], self._secrets)

    def _session_configuration(self, jvm: Any) -> SparkConf:
        assert self._temporary is not None
        conf = SparkConf(loadDefaults=False, _jvm=jvm).setAppName(self._application)
        if self._scratch is not None:  # no executor on another machine needs the local directories
            conf.set("spark.local.dir", str(self._scratch.path))
            conf.set(_SOCKET_DIRECTORY_KEY, str(self._scratch.path))
        for key, value in self._configuration.items():
            conf.set(key, value)
        directory = conf.get(_SOCKET_DIRECTORY_KEY, str(self._temporary.path))
        if len(os.fsencode(str(directory))) > _LONGEST_SOCKET_DIRECTORY:
            conf.set(_SOCKETS_KEY, "false")
        return conf

    def run_tasks(self, task: Callable[[T], Iterable[U]], inputs: Sequence[T], most_tasks: int | None = None) -> list[U]:
        """Runs one job with a task for each input (at least one), or with ``most_tasks`` that take several each, and
        returns what all of them yield, in the order of the inputs: little, because it travels as text. Any thread may
        call. Raises PySparkException or Py4JError when a task fails for good, or the JVM does.

        ``RDD.collect`` takes twice as long: each time the JVM searches the byte code of its functions for outer
        variables, and it opens a socket for the results.
        """
        if most_tasks is not None and len(inputs) > most_tasks:
            size = -(-len(inputs) // most_tasks)
            return self.run_tasks(_EachOf(task), [inputs[first : first + size] for first in range(0, len(inputs), size)])
        job = self._job(_Gathered(task), inputs)
        job._jrdd_deserializer = NoOpSerializer()
        pickled = io.BytesIO(b"".join(job._jrdd.collectAsync().get()))
        return [result for _ in inputs for result in pickle.load(pickled)]  # noqa: S301  from our own processes

    def stream_tasks(self, task: Callable[[T], Iterable[U]], inputs: Sequence[T]) -> Iterator[U]:
        """Runs the tasks one after the other, each while the results of the one before are consumed. They may be large:
        they come in a file, or by a socket from other machines.

        ``RDD.toLocalIterator`` prints a stack trace when results remain unread.
        """
        serve = self._serve if self._scratch is None else self._serve_filed
        with ThreadPoolExecutor(1, "spark-stream") as ahead:
            following = [ahead.submit(serve, task, given) for given in inputs[:1]]
            for given in inputs[1:]:
                results = following.pop().result()
                following.append(ahead.submit(serve, task, given))
                yield from results
            for last in following:
                yield from last.result()

    def _serve_filed(self, task: Callable[[T], Iterable[U]], given: T) -> Iterator[U]:
        assert self._scratch is not None
        assert self._temporary is not None
        (path,) = self.run_tasks(FiledTask(task, (self._scratch.path, self._temporary.path)), [given])
        results: Iterator[U] = filed_results(path)
        return results

    def _serve(self, task: Callable[[T], Iterable[U]], given: T) -> Iterable[U]:
        job = self._job(task, [given])
        rows = job._jrdd.collectAsync().get()
        jvm = self.context._jvm
        assert jvm is not None
        iterator = jvm.scala.jdk.javaapi.CollectionConverters.asScala(rows.iterator())
        with _load_from_socket(jvm.PythonRDD.serveIterator(iterator, "results"), job._jrdd_deserializer) as results:
            return list(results)

    def _job(self, task: Callable[[T], Iterable[U]], inputs: Sequence[T]) -> RDD[U]:
        count = len(inputs)
        if count not in self._partitions:
            self._partitions[count] = self.context.parallelize(range(count), count)
        return self._partitions[count].mapPartitionsWithIndex(_OneOf(task, tuple(inputs)))

    def warm_up(self, task: Callable[[int], Iterable[Any]]) -> None:
        """Runs ``task`` as often at once as tasks may run, so that Python processes exist and the JVM is warm when the
        first batch comes."""
        self.run_tasks(task, range(self.parallelism))

    def expect_end(self) -> None:
        """``close`` will follow. What Spark and its Python processes print of ends that are meant is of no interest."""
        self._is_ending = True

    def _log_lines(self, output: IO[bytes]) -> None:
        """Logs the lines of the JVM, and of tasks with their own fields."""
        with output:
            for line in output:
                text = without_secrets(line.decode("utf-8", "replace").rstrip(), self._secrets)
                if text and not text.startswith(_INEVITABLE) and not telemetry.relay(text):
                    self._last_lines.append(text)
                    (log.debug if self._is_ending else log.info)("spark says", line=text)

    @property
    def has_started(self) -> bool:
        return hasattr(self, "context")

    @property
    def executors(self) -> int:
        """Number of processes that run tasks now: one with a local master, none while a cluster has no free cores."""
        if is_local(str(self.context.master)):
            return 1
        try:
            return int(self.context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is among them
        except (Py4JError, OSError, AttributeError):
            return 0  # the JVM is gone, and its executors with it

    def cancel_jobs(self) -> None:
        """Ends the jobs that run, or wait for executors; their callers get errors. Nothing happens before Spark started."""
        if not self.has_started:
            return
        try:
            self.context.cancelAllJobs()
        except (Py4JError, OSError) as error:
            if not self.has_died:
                log.warning("Spark's jobs could not be cancelled", reason=failure_reason(error))

    @contextlib.contextmanager
    def while_it_lives(self) -> Iterator[None]:
        """Raises failures inside the block as TransientError if the JVM was killed, by a signal or for its memory."""
        try:
            yield
        except PgsluiceError:
            raise
        except Exception as error:  # PySpark meets a dead JVM with exceptions of any kind
            if not self.has_died:
                raise
            raise jvm_ended(failure_reason(error) or type(error).__name__) from None

    @property
    def has_died(self) -> bool:
        """Returns whether the JVM is gone without ``close``."""
        if self._process is None:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_S)
        return self._process.returncode is not None

    def check_alive(self) -> None:
        """Raises TransientError when the JVM is gone without ``close``. Does not wait."""
        if self._process is not None and self._process.poll() is not None:
            raise jvm_ended(f"exit code {self._process.returncode}")

    @property
    def process_id(self) -> int | None:
        """The JVM's; None before it started."""
        return None if self._process is None else self._process.pid

    @property
    def parallelism(self) -> int:
        """Number of tasks that run at once. On a cluster that may change."""
        if self._parallelism is None or not is_local(str(self.context.master)):
            self._parallelism = int(self.context.defaultParallelism)
        return self._parallelism

    def close(self, patience_s: float = 10.0) -> int | None:
        """Waits so long for the JVM to end; returns its exit code, None when there was no JVM or it had to be killed."""
        self.expect_end()  # PySpark's daemon and the JVM may both remove the daemon's socket, and one of them complains
        exit_code, ending = None, None
        try:
            if self.has_started:
                ending = end_accumulators_meanwhile(self.context)
                self.context.stop()
        except (Py4JError, OSError) as error:
            log.debug("Spark could not be stopped, its JVM is gone", reason=type(error).__name__)
        if self._process is not None:
            self._gateway.shutdown()  # or Python objects that are freed later would still call the JVM of their counterparts
            assert self._process.stdin is not None
            self._process.stdin.close()  # the JVM ends when its standard input does
            # Or another Spark of this process would look for the old JVM, and for a context that could not be stopped.
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
            try:
                exit_code = self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if ending is not None and ending.ident is not None:
            ending.join()
        for directory in (self._scratch, self._temporary):
            if directory is not None:
                directory.close()
        return exit_code


@dataclass(frozen=True, slots=True)
class _Gathered(Generic[T, U]):
    """Yields what ``task`` yields as one pickled list in pieces."""

    task: Callable[[T], Iterable[U]]

    def __call__(self, given: T) -> Iterator[bytes]:
        pickled = pickle.dumps([*self.task(given)], pickle.HIGHEST_PROTOCOL)
        for start in range(0, len(pickled), _PIECE_BYTES):
            yield pickled[start : start + _PIECE_BYTES]


@dataclass(frozen=True, slots=True)
class _EachOf(Generic[T, U]):
    """``task`` with one input after the other."""

    task: Callable[[T], Iterable[U]]

    def __call__(self, inputs: Sequence[T]) -> Iterable[U]:
        for given in inputs:
            yield from self.task(given)


@dataclass(frozen=True, slots=True)
class _OneOf(Generic[T, U]):
    """Runs in each partition of a job: ``task`` with its own input."""

    task: Callable[[T], Iterable[U]]
    inputs: tuple[T, ...]

    def __call__(self, partition: int, _: Iterable[Any]) -> Iterable[U]:
        return self.task(self.inputs[partition])

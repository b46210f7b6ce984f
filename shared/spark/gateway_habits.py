"""Replacements for PySpark's handling between Python and its JVM, which costs time, memory, or the current batch."""

from __future__ import annotations

import threading
from typing import Any

from py4j.java_collections import ListConverter, MapConverter
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from pgsluice.shared import telemetry

log = telemetry.logger(__name__)


def ignore_stop_signals(jvm: Any) -> None:
    """Makes the JVM ignore stop signals, for supervisors that send a signal to every process of a service, as systemd
    does. Python processes inherit that. PySpark's daemons handle SIGTERM themselves: pgsluice's block it
    (``worker.spark_daemon``); the daemons that resolve data sources at the start of a query end by it."""
    for name in ("TERM", "HUP"):  # PySpark itself starts the JVM with SIGINT ignored
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), jvm.sun.misc.SignalHandler.SIG_IGN)


def forgo_numpy(client: Any) -> None:
    """No array of NumPy goes to the JVM. PySpark would ask of every argument whether it is one, and load pandas and PyArrow to
    find out: 50 MB, and a third of a second at the start."""
    unneeded = (NumpyArrayConverter, NumpyScalarConverter)
    client.converters = [converter for converter in client.converters if not isinstance(converter, unneeded)]


def end_accumulators_meanwhile(context: Any) -> threading.Thread | None:
    """Makes ``context.stop`` begin the end of PySpark's server of accumulators, in the thread returned, without waiting
    for it: the server checks once a second whether it must end, or ends at once when the JVM is gone. None for a
    context that was stopped."""
    server = context._accumulatorServer
    if server is None:
        return None
    ending = threading.Thread(target=server.shutdown, name="spark-accumulators", daemon=True)
    server.shutdown = ending.start
    return ending


def log_broken_connection(*_: object) -> None:
    log.debug("a connection of the JVM broke")


def spare_calls(context: Any, gateway: Any) -> None:
    """Spares each job calls of the JVM: PySpark asks for classes by name each time, and then the JVM searches all of
    its archives; and it creates a Java map and a Java list again that never change, element by element."""
    for name in ("SimplePythonFunction", "PythonRDD", "PythonUtils"):
        setattr(gateway.jvm, name, getattr(gateway.jvm, name))
    context.environment = MapConverter().convert(context.environment, gateway._gateway_client)
    context._python_includes = ListConverter().convert(context._python_includes, gateway._gateway_client)

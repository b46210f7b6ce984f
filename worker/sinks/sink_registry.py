"""The kinds of sinks, a line for each, and custom sinks, named ``module:Class`` on the command line.

A kind is a package. Its module ``options`` holds ``SINK``, a ``SinkKind``; that module is imported for help texts and
for the options that a configuration file can contain, so it must load no library. All else of a sink is imported when a
worker starts with it.

A class is called with the worker's settings and the user's options (``sink-option``; ``shared.own_class`` reads them)
and makes a ``Sink`` (``worker.sinks.sink``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.own_class import find_class, is_class_name, made_of
from pgsluice.shared.preflight.finding import Finding, Findings, Subject
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.sink import Delivery, Sink

HOW_TO_GIVE = "give --sink-option NAME=VALUE, or a line below sink-option: in the file"
"""An option of a sink of one's own."""

_METHODS = ("open", "writer", "commit", "finish_copy", "close")


SINKS = {
    "stdout": "pgsluice.worker.sinks.stdout",
    "postgres": "pgsluice.worker.sinks.postgres",
    "file": "pgsluice.worker.sinks.file",
    "webhook": "pgsluice.worker.sinks.webhook",
    "nats": "pgsluice.worker.sinks.nats",
    "search": "pgsluice.worker.sinks.search",
    "subscriptions": "pgsluice.worker.sinks.subscriptions",
    "kafka": "pgsluice.worker.sinks.kafka",
}
"""Kind → package."""


is_sink_class = is_class_name


def default_name(sink_class: str) -> str:
    """Returns the default name of a worker of that sink."""
    return sink_class.rpartition(":")[2].lower().strip("_")


def load_sink(name: str, worker: WorkerSettings, options: Mapping[str, str]) -> Sink:
    """Returns the sink that the class makes. Raises UsageError when ``name`` names none, or its options are not right;
    what the class raises passes through."""
    sink: Sink = made_of("sink", name, find_class("sink", name), options, worker, how=HOW_TO_GIVE)
    missing = [method for method in _METHODS if not callable(getattr(sink, method, None))]
    if not isinstance(getattr(sink, "delivery", None), Delivery):
        missing.append("delivery")
    if missing:
        raise UsageError(f"sink {name} lacks {', '.join(missing)}", "see the protocol in worker/sinks/sink.py")
    return sink


@settings
class CustomSinkSettings:
    """The user's options for a custom sink."""

    options: dict[str, str] = read(
        Option(
            "sink-option",
            Kind.PAIRS,
            "Option for a custom sink; repeatable. The variable accepts a JSON object, the file a mapping",
            "path=/var/lib/sink/changes.db",
            secret=True,
        )
    )


def _nothing_to_check(settings: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SinkKind:
    """The command line's facts about a kind of sink.

    ``settings`` is its declaration (``shared.config.declaration``). ``sink`` is the class, as ``module:Class``; it is
    called with WorkerSettings and ``settings``. ``summary`` is one sentence for the list of sinks, ``help`` the
    beginning of the command's page. ``check`` checks settings before anything is started; it raises UsageError or
    TerminalError. ``findings`` is a function of ``pgsluice check``, as ``module:function``: it is called with
    WorkerSettings, ``settings`` and the coming tables (``worker.sinks.incoming``), and returns findings about the
    destination, without touching it.
    """

    settings: type[Any]
    sink: str
    summary: str
    help: str
    check: Callable[[Any], None] = _nothing_to_check
    findings: str = ""

    def new_sink(self, worker: WorkerSettings, settings: Any) -> Any:
        """Returns a ``Sink`` (``worker.sinks.sink``)."""
        module, _, name = self.sink.partition(":")
        return getattr(importlib.import_module(module), name)(worker, settings)

    def look(self, worker: WorkerSettings, settings: Any, incoming: Incoming) -> list[Finding]:
        """Returns the errors of ``check``, and the findings of ``findings``."""
        found = Findings(Subject.SINK)
        with found.looking("sink-settings"):
            self.check(settings)
        module, _, name = self.findings.partition(":")
        if module:
            found.take(getattr(importlib.import_module(module), name)(worker, settings, incoming))
        return list(found)


def find_sink(kind: str) -> SinkKind:
    """Raises KeyError for an unknown kind."""
    found = importlib.import_module(f"{SINKS[kind]}.options").SINK
    assert isinstance(found, SinkKind)
    return found


def sink_settings() -> dict[str, type[Any]]:
    """Returns the settings by kind of sink, sinks of others included."""
    return {kind: find_sink(kind).settings for kind in SINKS} | {"module:Class": CustomSinkSettings}

"""The kinds of sinks there are, a line for each.

A kind is a package. Its module ``options`` holds ``SINK``, a ``SinkKind``; that module is imported for help texts and for the
options that a configuration file may hold, so it must load no library. All else of a sink is imported when a worker starts
with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import WorkerSettings

SINKS = {
    "stdout": "pgsluice.worker.sinks.stdout",
    "postgres": "pgsluice.worker.sinks.postgres",
    "file": "pgsluice.worker.sinks.file",
    "webhook": "pgsluice.worker.sinks.webhook",
}
"""Kind → package."""


@settings
class CustomSinkSettings:
    """What the user tells a sink of their own."""

    options: dict[str, str] = read(
        Option(
            "sink-option",
            Kind.PAIRS,
            "An option for a sink of your own; repeatable. The variable takes a JSON object, the file a mapping",
            "path=/var/lib/sink/changes.db",
            secret=True,
        )
    )


def _nothing_to_check(settings: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SinkKind:
    """What the command line knows of a kind of sink.

    ``settings`` is what it declares (``shared.config.declaration``). ``sink`` is the class, as ``module:Class``; it is called
    with WorkerSettings and ``settings``. ``summary`` is one sentence for the list of sinks, ``help`` the beginning of the
    command's page. ``check`` looks at settings before anything is started; it raises UsageError or TerminalError.
    """

    settings: type[Any]
    sink: str
    summary: str
    help: str
    check: Callable[[Any], None] = _nothing_to_check

    def new_sink(self, worker: WorkerSettings, settings: Any) -> Any:
        """A ``Sink`` (``worker.sinks.sink``)."""
        module, _, name = self.sink.partition(":")
        return getattr(importlib.import_module(module), name)(worker, settings)


def find_sink(kind: str) -> SinkKind:
    """Raises KeyError when there is none."""
    found = importlib.import_module(f"{SINKS[kind]}.options").SINK
    assert isinstance(found, SinkKind)
    return found


def sink_settings() -> dict[str, type[Any]]:
    """Kind → what such a sink declares, sinks of others included."""
    return {kind: find_sink(kind).settings for kind in SINKS} | {"module:Class": CustomSinkSettings}


def preload_sinks() -> None:
    """Imports what tasks need of every kind."""
    for kind in SINKS:
        importlib.import_module(find_sink(kind).sink.partition(":")[0])

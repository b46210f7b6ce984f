"""The units that documents ask for, and the commands that run them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pgsluice.console.documents.document_settings import environment_for, process_environment
from pgsluice.console.documents.document_store import StoredDocument
from pgsluice.console.documents.group_document import WORKERS, GroupDocument, format_document, worker_entries
from pgsluice.console.pipelines.pipeline_catalog import ListedPipeline
from pgsluice.console.pipelines.places import Places
from pgsluice.console.processes.child_process import Command
from pgsluice.console.runner.unit_place import UnitPlace
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, worker_of_unit, worker_unit
from pgsluice.shared.config.connections import NatsSettings
from pgsluice.shared.config.declaration import variables_of
from pgsluice.shared.config.yaml_nodes import read_text
from pgsluice.shared.process.private_file import write_private

_PROGRAM = (sys.executable, "-P", "-m", "pgsluice.console.program")


@dataclass(frozen=True, slots=True)
class WantedUnit:
    """``revision`` is the revision of the document which asks for it. ``command`` runs it at its place, with the lock
    that it keeps open; it raises UsageError when that is impossible."""

    revision: int
    command: Callable[[UnitPlace, int], Command]


WantedUnits = Mapping[str, WantedUnit]
"""Wanted units by unit."""


def units_of(document: GroupDocument) -> dict[str, str]:
    """Returns the replicator and the workers of ``workers``, by unit, each with its kind of sink ("" for the
    replicator)."""
    workers = {worker_unit(name): kind for name, kind in worker_entries(document.raw(WORKERS))}
    return {REPLICATOR_UNIT: "", **workers}


def units_of_group(stored: StoredDocument[GroupDocument], nats: NatsSettings) -> WantedUnits:
    """``nats`` is the server's, also used for a document which names none."""

    def wanted(unit: str, kind: str) -> WantedUnit:
        return WantedUnit(stored.revision, lambda place, lock: _command(unit, kind, stored.document, place, lock, nats))

    return {unit: wanted(unit, kind) for unit, kind in units_of(stored.document).items()}


def units_of_pipeline(listed: ListedPipeline, places: Places, nats: NatsSettings) -> WantedUnits:
    """Returns the worker that fills the sink of a pipeline which is a document and may run."""
    pipeline = listed.pipeline
    assert pipeline is not None
    assert listed.document is not None
    sink = places.sinks[pipeline.sink]

    def command(place: UnitPlace, lock: int) -> Command:
        environment = {**environment_for(read_text(sink.config, "configuration file")), **variables_of(nats)}
        arguments = ("worker", sink.kind, "--name", sink.name, "--group", pipeline.group, "--config", sink.config)
        return _process(pipeline.group, worker_unit(sink.name), arguments, environment, place, lock)

    return {worker_unit(sink.name): WantedUnit(listed.document, command)}


def _command(unit: str, kind: str, document: GroupDocument, place: UnitPlace, lock: int, nats: NatsSettings) -> Command:
    """Writes the configuration that the process reads. References in it are to the server's environment, which is the
    process's."""
    write_private(place.configuration, format_document(document).encode())
    worker = worker_of_unit(unit)
    arguments = (REPLICATOR_UNIT,) if worker is None else ("worker", kind, "--name", worker)
    arguments = (*arguments, "--config", str(place.configuration))
    return _process(document.group, unit, arguments, process_environment(document, nats), place, lock)


def _process(
    group: str, unit: str, arguments: tuple[str, ...], environment: Mapping[str, str], place: UnitPlace, lock: int
) -> Command:
    return Command(
        name=f"{group}/{unit}",
        arguments=(*_PROGRAM, *arguments),
        environment=environment,
        log=place.log,
        kept_open=(lock,),
        outlives_us=True,
    )


def folder_of(state_directory: Path, group: str) -> Path:
    return state_directory / "groups" / group

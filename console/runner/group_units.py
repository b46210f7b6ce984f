"""Which units a document asks for, and the commands that run them."""

from __future__ import annotations

import sys
from pathlib import Path

from pgsluice.console.documents.document_settings import process_environment
from pgsluice.console.documents.group_document import WORKERS, GroupDocument, format_document, worker_entries
from pgsluice.console.processes.child_process import Command
from pgsluice.console.runner.unit_place import UnitPlace
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, worker_of_unit, worker_unit
from pgsluice.shared.config.connections import NatsSettings
from pgsluice.shared.process.private_file import write_private

_PROGRAM = (sys.executable, "-P", "-m", "pgsluice.console.program")


def units_of(document: GroupDocument) -> dict[str, str]:
    """The replicator and the workers of ``workers``, by unit, each with its kind of sink ("" for the replicator)."""
    workers = {worker_unit(name): kind for name, kind in worker_entries(document.raw(WORKERS))}
    return {REPLICATOR_UNIT: "", **workers}


def command_of(unit: str, kind: str, document: GroupDocument, place: UnitPlace, lock: int, nats: NatsSettings) -> Command:
    """Writes the configuration that the process reads. References in it are to our own environment, which is the process's.
    ``nats`` is ours, and that of a document which names none."""
    write_private(place.configuration, format_document(document).encode())
    worker = worker_of_unit(unit)
    arguments = (REPLICATOR_UNIT,) if worker is None else ("worker", kind, "--name", worker)
    return Command(
        name=f"{document.group}/{unit}",
        arguments=(*_PROGRAM, *arguments, "--config", str(place.configuration)),
        environment=process_environment(document, nats),
        log=place.log,
        kept_open=(lock,),
        outlives_us=True,
    )


def folder_of(state_directory: Path, group: str) -> Path:
    return state_directory / "groups" / group

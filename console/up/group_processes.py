"""The replicator and the worker of a group, as commands of this very program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from pgsluice.console.processes.child_process import Command
from pgsluice.console.up.state_directory import StateDirectory
from pgsluice.shared.config.option import PG_FLO_PREFIX, PREFIX
from pgsluice.shared.process.start import STANDARD_OUTPUT

REPLICATOR = "replicator"
WORKER = "worker"


def group_commands(sink: str, state: StateDirectory, variables: Mapping[str, str]) -> Iterator[Command]:
    """Yields the commands, the replicator first. Their configuration is the state directory's alone: pgsluice's
    variables of the environment were read already, and are in it."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith((PREFIX, PG_FLO_PREFIX))}
    for name, arguments in ((REPLICATOR, (REPLICATOR,)), (WORKER, (WORKER, sink))):
        yield Command(
            name=name,
            arguments=(*_PROGRAM, *arguments, "--config", str(state.configuration)),
            environment=environment | dict(variables),
            log=state.log(name),
            output=STANDARD_OUTPUT if arguments == (WORKER, "stdout") else None,
            kept_open=(state.lock,),
        )


_PROGRAM = (sys.executable, "-P", "-m", "pgsluice.console.program")
"""``-P``: a directory called pgsluice in the current directory is not mistaken for the program."""

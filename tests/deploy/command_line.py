"""A command line of somebody else's file, held against the program: the command is there, and takes what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pgsluice.console.flags import settings_by_command
from pgsluice.shared.config import Values
from pgsluice.shared.config.settings import WorkerSettings
from tests.configuration import load_from


def loaded(arguments: Sequence[str], config: Mapping[str, Any], directory: Path) -> Values:
    """What the command ``pgsluice <arguments>`` would read of ``config``; it fails as the command would."""
    *command, flag, path = arguments
    assert flag == "--config"
    assert path.startswith("/etc/pgsluice/")
    common = (WorkerSettings,) if command[0] == "worker" else ()
    file = directory / "pgsluice.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    return load_from({"config": str(file)}, {}, *common, settings_by_command()[" ".join(command)])

"""Configuration files for tests: what every command needs, and what is under test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgsluice.console.flags import known_options
from pgsluice.shared import config
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import COMMANDS, WorkerSettings
from pgsluice.worker.sinks.sink_registry import sink_settings

OPTIONS = known_options()
BY_NAME = {option.name: option for option in OPTIONS}

Readers = tuple[type[Any], ...]
"""The settings that one command reads."""

READERS: tuple[Readers, ...] = (
    *((settings,) for settings in COMMANDS.values()),
    *((WorkerSettings, settings) for settings in sink_settings().values()),
)

REQUIRED = {
    "group": "orders",
    "nats-url": "nats://nats:4222",
    "host": "db",
    "dbname": "shop",
    "user": "app",
    "target-host": "target",
    "target-dbname": "warehouse",
    "target-user": "loader",
}


def yaml_file(directory: Path, content: Mapping[str, str]) -> str:
    path = directory / "pgsluice.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in content.items()))
    return str(path)


def load_from(flags: Mapping[str, str | tuple[str, ...]], environment: Mapping[str, str], *settings: type[Any]) -> config.Values:
    return config.load(flags, environment, *settings, known=OPTIONS)


def load(directory: Path, content: str, *settings: type[Any], **flags: str) -> config.Values:
    """Loads a file with ``content`` behind what every command needs."""
    path = directory / "pgsluice.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in REQUIRED.items()) + content)
    return load_from({"config": str(path)} | {key.replace("_", "-"): text for key, text in flags.items()}, {}, *settings)


def readers_of(option: Option) -> Readers:
    """The settings of the first command that reads it."""
    return next(settings for settings in READERS if option.name in (other.name for other in config.options_of(*settings)))


def case_name(value: object) -> str:
    return value.name if isinstance(value, Option) else ">".join(value) if isinstance(value, tuple) else str(value)

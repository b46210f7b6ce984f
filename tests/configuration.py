"""Configuration files for tests: what every command needs, and what is under test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pgsluice.shared import config
from pgsluice.shared.config.options import Option, Role

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


def load(directory: Path, content: str, *roles: Role, **flags: str) -> config.Values:
    """Loads a file with ``content`` behind what every command needs."""
    path = directory / "pgsluice.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in REQUIRED.items()) + content)
    return config.load({"config": str(path)} | {key.replace("_", "-"): text for key, text in flags.items()}, {}, *roles)


def roles_of(option: Option) -> tuple[Role, ...]:
    role = option.roles[0]
    return (Role.WORKER, role) if role.value.startswith("worker ") else (role,)


def case_name(value: object) -> str:
    return value.name if isinstance(value, Option) else ">".join(value) if isinstance(value, tuple) else str(value)

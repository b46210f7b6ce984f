"""The systemd units and their page, as far as no systemd is needed."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.deploy.command_line import loaded
from tests.deploy.documented import blocks
from tests.misses import no_misses
from tests.servers.program import REPOSITORY

UNITS = REPOSITORY / "deploy" / "systemd"
PAGE = "how-to/systemd.md"
ROLES = {"replicator": ["password"], "worker": ["target-password"]}
"""Each with the secrets that it is handed."""

each_role = pytest.mark.parametrize("role", ROLES)


def unit(role: str) -> dict[str, list[str]]:
    """Every setting with its values, in their order."""
    settings = defaultdict(list)
    for line in (UNITS / f"pgsluice-{role}@.service").read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            settings[name].append(value)
    return settings


@each_role
def test_a_unit_runs_a_command_that_reads_the_documented_configuration(role: str, tmp_path: Path) -> None:
    (line,) = unit(role)["ExecStart"]
    (sink,) = [value.removeprefix("SINK=") for value in unit(role)["Environment"]] or [""]
    program, *arguments = shlex.split(line.replace("${SINK}", sink))
    assert program == "/opt/pgsluice/bin/pgsluice"
    (config,) = blocks(PAGE, "yaml")
    for secret in ROLES[role]:
        (tmp_path / secret).write_text("secret\n")
    config = re.sub(r"\$\{CREDENTIALS_DIRECTORY:-[^}]*\}", str(tmp_path), config)
    values = loaded(arguments, yaml.safe_load(config), tmp_path)
    assert {values.text(secret) for secret in ROLES[role]} == {"secret"}


@each_role
def test_the_page_keeps_secrets_where_the_unit_takes_them_from(role: str) -> None:
    credentials = [value.replace("%i", "shop") for value in unit(role)["LoadCredential"]]
    assert credentials == [f"{name}:/etc/pgsluice/shop.secrets/{name}" for name in ROLES[role]]
    (config,) = blocks(PAGE, "yaml")
    for name in ROLES[role]:
        assert f"{name}-file: ${{CREDENTIALS_DIRECTORY:-/etc/pgsluice/shop.secrets}}/{name}\n" in config


@each_role
def test_a_unit_is_started_again_unless_a_person_is_needed(role: str) -> None:
    page = (REPOSITORY / "docs" / "reference" / "exit-codes.md").read_text()
    needs_a_person = [
        code
        for code, action in re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", page, re.MULTILINE)
        if "first" in action or "operator" in action
    ]
    assert unit(role)["Restart"] == ["on-failure"]
    assert unit(role)["RestartPreventExitStatus"] == [" ".join(needs_a_person)] == ["2 70"]
    assert unit(role)["StartLimitIntervalSec"] == ["0"]


@each_role
def test_a_unit_is_given_the_time_to_stop_that_the_documents_name(role: str) -> None:
    named = re.search(r"let a supervisor wait for (\d+) s before SIGKILL", (REPOSITORY / "docs/how-to/operate.md").read_text())
    assert named is not None
    assert unit(role)["TimeoutStopSec"] == [named[1]]
    assert unit(role)["KillMode"] == ["mixed"]


def test_units_differ_in_what_the_roles_do_only() -> None:
    replicator, worker = unit("replicator"), unit("worker")
    differing = {name for name in replicator.keys() | worker.keys() if replicator[name] != worker[name]}
    of_the_roles = {"Description", "ExecStart", "ExecReload", "Environment", "LoadCredential", "SetCredential"}
    kept = {"StateDirectory", "StateDirectoryMode"}
    no_misses(differing - of_the_roles - kept, "in one of the two units, or otherwise in each: is that the role's?")

"""The page about managed PostgreSQL gives the settings that ``check`` prints for each provider."""

from __future__ import annotations

import re

import pytest

from pgsluice.replicator.preflight.server_findings import ADVISED_KEPT
from pgsluice.shared.preflight.provider import ADMINISTRATORS, Provider, replication_cure, setting_cure
from tests.source_code import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "managed-postgresql.md").read_text()

SECTIONS = {
    Provider.PLAIN: "Any other server",
    Provider.RDS: "Amazon RDS and Aurora",
    Provider.CLOUD_SQL: "Google Cloud SQL",
    Provider.AZURE: "Azure Database for PostgreSQL",
    Provider.SUPABASE: "Supabase",
}
UNKNOWN = ("Neon", "Crunchy Bridge")
"""Providers that have a section and that ``check`` takes for PLAIN."""


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def printed(title: str) -> list[str]:
    """The lines that the section shows as printed by ``check``."""
    return [line for block in re.findall(r"```text\n(.*?)```", section(title), re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("provider", Provider)
def test_the_page_shows_what_check_prints_for_each_provider(provider: Provider) -> None:
    shown = [setting_cure(provider, "wal_level", "logical", restart=True).remedy]
    if provider is not Provider.AZURE:  # nobody can set it there
        shown.append(setting_cure(provider, "max_slot_wal_keep_size", ADVISED_KEPT, restart=False).remedy)
    assert printed(SECTIONS[provider]) == shown


@pytest.mark.parametrize("provider", Provider)
def test_the_page_has_the_statement_by_which_a_role_may_replicate(provider: Provider) -> None:
    assert f"{replication_cure(provider, 'pgsluice').statements[0]};" in section(SECTIONS[provider])


def test_the_page_lists_the_roles_by_which_providers_are_recognised() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([\w-]+)` \| \[", PAGE, re.MULTILINE))
    assert rows == {role: provider.value for role, provider in ADMINISTRATORS.items()}


@pytest.mark.parametrize("title", UNKNOWN)
def test_the_page_names_providers_that_check_does_not_recognise(title: str) -> None:
    assert f"`check` does not recognise {title}" in section(title)
    assert title.split()[0].lower() not in "".join(ADMINISTRATORS)

"""How several errors become one, and how providers spell a cure."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError, TransientError, UsageError
from pgsluice.shared.preflight.finding import Findings, Severity, Subject, raise_all, raise_errors
from pgsluice.shared.preflight.provider import Provider, provider_of, replication_cure, setting_cure


def test_a_single_error_is_raised_as_it_is() -> None:
    error = UsageError("a", "b")
    with pytest.raises(UsageError, match=r"^a: b$"):
        raise_all([error, UsageError("a", "b")], "the source")


def test_several_errors_are_one_that_names_each() -> None:
    with pytest.raises(TerminalError, match=r"the source: 2 things are wrong: correct each.*\n  - a: b\n  - c: d"):
        raise_all([UsageError("a", "b"), TerminalError("c", "d")], "the source")
    with pytest.raises(UsageError, match="2 things"):
        raise_all([UsageError("a", "b"), UsageError("c", "d")], "the source")


def test_warnings_stop_nobody() -> None:
    found = Findings(Subject.SOURCE)
    found.note("c", Severity.WARNING, "w")
    raise_errors(found, "the source")


def test_a_passing_failure_is_no_finding() -> None:
    found = Findings(Subject.SOURCE)
    with pytest.raises(TransientError), found.looking("c"):
        raise TransientError("away")
    assert list(found) == []


@pytest.mark.parametrize(
    ("role", "provider", "remedy", "statements"),
    [
        (
            "nobody",
            Provider.PLAIN,
            "ALTER SYSTEM SET wal_level = 'logical' and restart",
            ("ALTER SYSTEM SET wal_level = 'logical'",),
        ),
        ("rds_superuser", Provider.RDS, "rds.logical_replication = 1", ()),
        ("cloudsqlsuperuser", Provider.CLOUD_SQL, "--database-flags=cloudsql.logical_decoding=on", ()),
        ("azure_pg_admin", Provider.AZURE, "server parameter wal_level to logical", ()),
        ("supabase_admin", Provider.SUPABASE, "postgres-config update --config wal_level=logical", ()),
    ],
)
def test_a_setting_is_cured_as_its_provider_has_it(
    role: str, provider: Provider, remedy: str, statements: tuple[str, ...]
) -> None:
    assert provider_of([role, "postgres"]) is provider
    cure = setting_cure(provider, "wal_level", "logical", restart=True)
    assert remedy in cure.remedy
    assert cure.statements == statements


def test_at_rds_a_role_replicates_as_a_member() -> None:
    assert replication_cure(Provider.RDS, '"r"').statements == ('GRANT rds_replication TO "r"',)
    assert replication_cure(Provider.AZURE, '"r"').statements == ('ALTER ROLE "r" REPLICATION',)

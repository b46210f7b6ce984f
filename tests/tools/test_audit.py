"""The audit fails for a vulnerability, and reports that it audited nothing if the advisory service is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import audit

CLEAN = '{"dependencies": [{"name": "a", "version": "1", "vulns": []}], "fixes": []}'
FLAWED = '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}], "fixes": []}'
UNKNOWN = '{"dependencies": [{"name": "a", "skip_reason": "Dependency not found on PyPI"}], "fixes": []}'
AWAY = "requests.exceptions.ConnectionError: api.osv.dev: Name or service not known"


def audited(directory: Path, said: str, complaint: str = "", *options: str) -> int:
    program = directory / "pip-audit"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{said}'\necho '{complaint}' >&2\n")
    program.chmod(0o755)
    return audit.main([str(program), *options])


@pytest.mark.parametrize(
    ("said", "complaint", "codes", "sentence"),
    [
        (CLEAN, "", (0, 0), "audited: no known vulnerability in what is locked\n"),
        (FLAWED, "", (1, 1), "vulnerable: a 1: CVE-1, fixed in 2\n"),
        (
            UNKNOWN,
            "",
            (0, 1),
            "NOT AUDITED: the advisory service did not answer for 1 packages, first: Dependency not found on PyPI\n",
        ),
        (
            "",
            AWAY,
            (0, 1),
            "NOT AUDITED: the advisory service did not answer for 1 packages, first: ConnectionError: api.osv.dev:",
        ),
    ],
)
def test_what_the_audit_finds_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, complaint: str, codes: tuple[int, int], sentence: str
) -> None:
    assert (audited(tmp_path, said, complaint), audited(tmp_path, said, complaint, "--strict")) == codes
    assert capsys.readouterr().out.startswith(sentence)


def test_a_tool_that_fails_of_itself_is_no_silence(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"pip-audit failed for dev\.txt: unknown option"):
        audited(tmp_path, "", "unknown option")

"""What a run that was cut off has left of its servers and directories is removed when the next one begins."""

from __future__ import annotations

import pytest

from tests.servers.child import remove_leftovers


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        remove_leftovers()

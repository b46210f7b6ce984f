"""The Dockerfile, linted. ``tests/image`` builds it."""

from __future__ import annotations

import pytest

from tests.deploy.tools import run
from tests.servers.program import REPOSITORY

pytestmark = pytest.mark.deploy


def test_the_linter_has_nothing_to_say_of_the_dockerfile() -> None:
    assert run("hadolint", REPOSITORY / "docker" / "Dockerfile") == ""

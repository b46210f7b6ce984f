"""One browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console.server.page.browsing import Visit, browser, visiting
from tests.console.server.served import Served


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture
def visit(window: Browser, served: Served) -> Iterator[Visit]:
    """Of somebody who has come in by a link as admin."""
    with visiting(window, served) as begun:
        begun.log_in()
        yield begun

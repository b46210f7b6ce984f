"""What the page says while NATS does not answer: nothing that was the case before is shown as if it were now."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.console.server.page.browsed_group import aside
from tests.console.server.page.browsing import visiting
from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

pytestmark = pytest.mark.page

AWAY_MS = 30_000


def test_no_state_is_shown_that_nobody_knows(window: Browser, tmp_path: Path) -> None:
    with NatsServer() as nats:
        aside(lambda: ensure_bucket(nats.settings(), "away"))
        with Served(nats.url, tmp_path) as served, visiting(window, served) as visit:
            visit.log_in()
            card = visit.page.get_by_role("article", name="Group away")
            expect(card.locator("header .badge")).to_have_text("draft")
            nats.kill()
            expect(card.locator("header .badge")).to_have_text("not known", timeout=AWAY_MS)
            expect(card.locator(".line .badge").first).to_have_text("not known")
            expect(card.get_by_text("This state is from 20")).to_be_visible()
            expect(visit.page.get_by_text("1 not known")).to_be_visible()
            nats.start()
            expect(card.locator("header .badge")).to_have_text("draft", timeout=AWAY_MS)

"""A browser at the page of a server, as a person with it, and what it tells of the page's manners."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.console.server.served import Served
from tests.servers.program import REPOSITORY

BROWSER = REPOSITORY / "build" / "browser"
WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=400, height=800)
SOON_MS = 15_000
SERIOUS = ("serious", "critical")

_AXE_RUN = "axe.run({resultTypes: ['violations']}).then(({violations}) => violations)"


def install_browser() -> Path:
    """Skips the test where no package can be had, but not in CI."""
    script = Path(__file__).with_name("install_browser.sh")
    done = subprocess.run(["sh", str(script), str(BROWSER)], capture_output=True, text=True)
    if done.returncode != 0:
        if os.environ.get("CI"):
            raise RuntimeError(done.stderr)
        pytest.skip(f"no chromium: {done.stderr.strip()}")
    return BROWSER / "chromium"


@contextmanager
def browser() -> Iterator[Browser]:
    program = install_browser()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=arguments)
        yield running
        running.close()


@dataclass
class Visit:
    """One person's window. ``asked`` are the addresses that it asked for, ``complaints`` what the browser said against the page:
    errors of scripts, and what the content security policy refused."""

    served: Served
    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def log_in(self, name: str = "admin") -> None:
        self.page.goto(self.served.link(name))
        self.page.get_by_role("heading", name="Groups").wait_for()

    def open(self, *parts: str) -> None:
        """The view at that place: ("groups", "shop", "letters")."""
        self.page.goto(f"{self.served.address}/#/{'/'.join(parts)}")

    def strangers(self) -> list[str]:
        """Addresses outside the server's own origin."""
        return [url for url in self.asked if not url.startswith((f"{self.served.address}/", "data:", "blob:"))]

    def findings(self) -> list[str]:
        """What axe finds to be serious in what is shown now."""
        self.page.evaluate(AXE_FILE_PATH.read_text())
        violations: list[dict[str, Any]] = self.page.evaluate(_AXE_RUN)
        return [
            f"{each['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for each in violations
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def visiting(window: Browser, served: Served, size: ViewportSize = WIDE, theme: Any = "light") -> Iterator[Visit]:
    """At the end nothing may have been asked of anybody else, and the browser must have nothing to complain of."""
    context = window.new_context(viewport=size, color_scheme=theme, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(SOON_MS)
    visit = Visit(served, context.new_page())
    visit.page.on("request", lambda request: visit.asked.append(request.url))
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("console", lambda said: visit.complaints.append(said.text) if _is_complaint(said.type, said.text) else None)
    try:
        yield visit
    finally:
        context.close()
    assert visit.strangers() == []
    assert visit.complaints == []


def _is_complaint(kind: str, text: str) -> bool:
    """An answer of the server that refuses something is none: the page shows it."""
    return kind in ("error", "warning") and not text.startswith("Failed to load resource")

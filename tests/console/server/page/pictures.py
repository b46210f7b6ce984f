"""``make page-pictures``: the page over the demo's shop, as the documentation shows it, in both sizes and themes."""

from __future__ import annotations

import time

from playwright.sync_api import Browser, expect

from benchmarks.demo.live_shop import LiveShop, live_shop
from benchmarks.demo.shop_group import GROUP
from tests.console.server.page.browsing import NARROW, WIDE, Visit, browser, visiting
from tests.servers.program import REPOSITORY
from tests.waiting import wait_until

FOLDER = REPOSITORY / "docs" / "images"
FIGURES_S = 180.0
"""So long the shop runs before it is drawn, so that its charts have something to show."""


def have_letters(shop: LiveShop) -> None:
    """One name that the target does not take."""
    shop.target.execute("ALTER TABLE customers ADD CONSTRAINT short_name CHECK (length(name) < 60) NOT VALID")
    shop.source.execute("INSERT INTO customers (name, address) VALUES (repeat('Ada ', 20), '{}')")


def draw(visit: Visit, name: str) -> None:
    """As much as a window shows."""
    path = FOLDER / f"page-{name}.png"
    visit.page.evaluate("document.activeElement.blur()")
    visit.page.screenshot(path=path, full_page=False)
    print(f"{path.relative_to(REPOSITORY)}: {path.stat().st_size / 1024:.0f} KiB")


def draw_views(window: Browser, shop: LiveShop) -> None:
    with visiting(window, shop.served, WIDE, "light") as visit:
        visit.page.set_viewport_size({"width": 1280, "height": 1000})
        visit.log_in()
        visit.open("groups", GROUP)
        visit.page.get_by_role("figure", name="Changes").wait_for()
        visit.page.get_by_text("1 change is a dead letter").wait_for()
        expect(visit.page.locator(".line").get_by_text("rate not known")).to_have_count(0)
        draw(visit, "group")
        visit.page.get_by_role("button", name="Check", exact=True).click()
        visit.page.locator(".finding").first.wait_for()
        visit.page.get_by_role("heading", name="Health").scroll_into_view_if_needed()
        visit.page.set_viewport_size({"width": 1280, "height": 640})
        visit.page.evaluate("document.getElementById('health').scrollIntoView()")
        draw(visit, "health")
        visit.open("groups", GROUP, "letters")
        visit.page.get_by_role("button", name="Show").first.wait_for()
        visit.page.set_viewport_size({"width": 1280, "height": 420})
        draw(visit, "letters")
        visit.open("groups", GROUP, f"trace?table=public.orders&key=id%3D{traced(shop)}")
        visit.page.locator(".trace li").first.wait_for()
        visit.page.set_viewport_size({"width": 1280, "height": 700})
        draw(visit, "trace")
    with visiting(window, shop.served, NARROW, "dark") as visit:
        visit.log_in()
        expect(visit.page.locator(".line").get_by_text("rate not known")).to_have_count(0)
        draw(visit, "narrow-dark")


def traced(shop: LiveShop) -> int:
    """An order that was shipped since the copy."""
    return int(shop.source.execute("SELECT id FROM orders WHERE status = 'shipped' ORDER BY id DESC LIMIT 1")[0][0])


def is_copied(shop: LiveShop) -> bool:
    with shop.served.client() as client:
        status = client.get(f"/groups/{GROUP}").json()["status"] or {"tables": []}
    return bool(status["tables"]) and all(table["phase"] == "ready" for table in status["tables"])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with live_shop() as shop, browser() as window:
        wait_until(lambda: is_copied(shop), deadline_s=300, what="the copy")
        shop.served.kill()  # it forgets its figures: the copy's rows in a second would dwarf all others
        shop.served.start()
        end = time.monotonic() + FIGURES_S
        wait_until(lambda: time.monotonic() > end, deadline_s=2 * FIGURES_S, what="figures", interval_s=1.0)
        shop.check()
        have_letters(shop)
        draw_views(window, shop)


if __name__ == "__main__":
    main()

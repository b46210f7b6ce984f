"""Sessions in a real browser: how they begin and end, which servers get their cookies, and what the audit shows of them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.console.server.page.browsing import Visit, visiting
from tests.console.server.served import Served
from tests.servers.http_server import Answer, HttpServer

pytestmark = pytest.mark.page


def test_who_logs_out_is_out_also_after_loading_again(window: Browser, served: Served) -> None:
    with visiting(window, served) as visit:
        visit.log_in()
        visit.page.get_by_role("button", name="Log out").click()
        expect(visit.page.get_by_role("heading", name="Log in with a link")).to_be_visible()
        visit.page.reload()
        expect(visit.page.get_by_role("heading", name="Log in with a link")).to_be_visible()
        assert visit.page.context.cookies() == []


def test_another_server_of_this_machine_is_sent_no_cookie_of_ours(window: Browser, served: Served) -> None:
    port = served.address.rpartition(":")[2]
    link = served.run_command("token", "link", "admin", f"--listen=127.0.0.1:{port}")
    with HttpServer() as other, window.new_context() as context:
        other.answer = lambda request: Answer(headers={"Content-Type": "text/html"}, body=b"<h1>Another</h1>")
        page = context.new_page()
        page.goto(link)
        page.get_by_role("heading", name="Groups").wait_for()
        assert {cookie["name"] for cookie in context.cookies()} == {"pgsluice-session", "pgsluice-csrf"}
        for host in ("127.0.0.1", "localhost"):
            page.goto(f"http://{host}:{other.port}/")
        assert other.requests
        assert not [request for request in other.requests if "cookie" in request.headers]


def test_what_was_refused_is_in_the_audit_when_it_is_asked_for(served: Served, visit: Visit) -> None:
    with served.client(served.token("refused-on-page")) as viewer:
        assert viewer.put("/groups/seen-refused/desired", json={"state": "stopped"}).status_code == 403
    visit.open("audit")
    row = visit.page.get_by_role("row").filter(has_text="seen-refused")
    expect(visit.page.get_by_role("heading", name="Audit")).to_be_visible()
    expect(row).to_have_count(0)
    visit.page.get_by_label("Refused writes").check()
    expect(row).to_contain_text("this role may not do it")
    assert visit.findings() == []

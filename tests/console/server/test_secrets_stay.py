"""A marker in every secret that a server can be given: in no answer, log line or audit entry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from pgsluice.console.server.api.table import all_endpoints
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import NatsSettings
from tests.configuration import OPTIONS
from tests.console.server.served import Served
from tests.recorded_group import record
from tests.servers import NatsServer

MARKER = "m4rk3r-of-a-secret"
SECRETS = [option for option in OPTIONS if option.secret]
GROUP = "marked"
LOGIN = f"authorization {{ user: pgsluice, password: {MARKER} }}\n"


def variable(option: Option) -> str:
    return f"SECRET_OF_{option.name.upper().replace('-', '_')}"


def document(nats: NatsServer) -> str:
    """With every secret that there is, each as a reference."""
    options: dict[str, object] = {"group": GROUP, "host": "127.0.0.1", "port": 1, "dbname": "d", "user": "u", "nats-user": "u"}
    for option in SECRETS:
        reference = f"${{{variable(option)}}}"
        options[option.name] = {"X-Any": reference} if option.kind is Kind.PAIRS else reference
    for name in ("source-url", "target-url", "nats-token"):  # others say the same
        options.pop(name, None)
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in (options | {"nats-url": nats.url}).items())


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, NatsServer]]:
    """A server that has all secrets in its environment, and its own login at NATS."""
    env = {variable(option): MARKER for option in SECRETS} | {"PGSLUICE_NATS_PASSWORD": MARKER}
    with NatsServer(config=LOGIN) as nats:
        settings = nats.settings()
        login = NatsSettings.of_url(settings.url, "pgsluice", MARKER)

        async def prepare() -> None:
            async with connected(login, "test") as client:
                await record(client, GROUP)

        asyncio.run(prepare())
        with Served(nats.url, tmp_path_factory.mktemp("marked"), env=env, nats_user="pgsluice") as server:
            yield server, nats


def test_no_answer_holds_a_secret(marked: tuple[Served, NatsServer]) -> None:
    server, nats = marked
    texts = []
    with server.client() as client:
        texts.append(client.put(f"/groups/{GROUP}/document", json={"yaml": document(nats)}).text)
        texts.append(client.post("/plan", json={"documents": [document(nats)]}).text)
        texts.append(client.post("/apply", json={"documents": [document(nats)]}).text)
        texts.append(client.post(f"/groups/{GROUP}/check").text)
        readable = [each for each in all_endpoints("") if each.verb == "GET" and each.media_type != "text/event-stream"]
        texts += [client.get(endpoint.path.replace("{group}", GROUP)).text for endpoint in readable]
        with client.stream("GET", "/events") as events:
            texts.append(next(text for text in events.iter_text() if GROUP in text))
    assert "SECRET_OF_" in texts[0]
    assert len(texts) > 15
    assert not [text for text in texts if MARKER in text]
    assert MARKER not in server.process.log()


@pytest.mark.parametrize("option", SECRETS, ids=lambda option: option.name)
def test_a_secret_that_is_written_out_is_refused_and_repeated_nowhere(marked: tuple[Served, NatsServer], option: Option) -> None:
    server, _ = marked
    value: object = {"X-Any": MARKER} if option.kind is Kind.PAIRS else MARKER
    if option.kind is Kind.SERVERS:
        value = f"nats://user:{MARKER}@localhost:4222"
    elif option.kind is Kind.URL:
        value = f"https://example.com/{MARKER}"
    text = f"group: literal\n{option.name}: {json.dumps(value)}\n"
    with server.client() as client:
        for answer in (
            client.put("/groups/literal/document", json={"yaml": text}),
            client.post("/plan", json={"documents": [text]}),
            client.post("/apply", json={"documents": [text]}),
        ):
            assert answer.status_code == 422, answer.text
            assert option.name in answer.text
            assert MARKER not in answer.text
        for refused in ("false", "true"):
            assert MARKER not in client.get("/audit", params={"limit": "500", "refused": refused}).text
    assert MARKER not in server.process.log()


def test_a_token_is_nowhere_but_with_its_owner(marked: tuple[Served, NatsServer]) -> None:
    server, _ = marked
    token, link = server.token("marked-owner", "admin"), server.link("marked-owner")
    code = link.partition("code=")[2]
    with server.client(token) as client:
        texts = [client.get(path).text for path in ("/", "/audit", "/openapi.json")]
    assert httpx.get(link).status_code == 303
    texts += [server.process.log(), httpx.get(link).text]
    kept = [path.read_bytes() for path in server.state_directory.rglob("*") if path.is_file()]
    assert not [text for text in texts if token in text or code in text]
    assert not [content for content in kept if token.encode() in content or code.encode() in content]

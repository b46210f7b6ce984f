"""How a connection to NATS proves who it is, and to whom it speaks, against real servers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from pgsluice.shared.broker.connection import connect, connected, disconnect
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from tests.logged import fields_of
from tests.servers import NatsServer
from tests.servers.child import HOST, free_port
from tests.servers.nats_accounts import NatsAccounts
from tests.shared.broker.test_connection import is_answered
from tests.waiting import LONGEST_S, wait_on_loop, wait_until_async

TRACED = "debug: true\ntrace: true\n"
"""Of a server that logs every line that clients say to it."""
CREATED = "Client connection created"


async def reaches_jetstream(settings: NatsSettings) -> bool:
    """``connect`` asks JetStream for the account's limits before it returns."""
    client = await connect(settings, "test")
    await client.close()
    return True


async def refusal(settings: NatsSettings) -> PgsluiceError:
    with pytest.raises(PgsluiceError) as caught:
        await connect(settings, "test")
    return caught.value


@pytest.fixture(scope="module")
def password_server() -> Iterator[NatsServer]:
    with NatsServer(config='authorization { user: "pgsluice", password: "s3cret" }') as server:
        yield server


async def test_user_and_password_are_accepted(password_server: NatsServer) -> None:
    assert await reaches_jetstream(dataclasses.replace(password_server.settings(), user="pgsluice", password="s3cret"))


async def test_a_wrong_password_needs_a_person_and_is_not_shown(password_server: NatsServer) -> None:
    error = await refusal(dataclasses.replace(password_server.settings(), user="pgsluice", password="wr0ng"))
    assert isinstance(error, TerminalError)
    assert "refuses the credentials" in str(error)
    assert "wr0ng" not in str(error)


async def test_a_password_in_the_url_is_accepted_and_not_shown(password_server: NatsServer) -> None:
    address = f"{password_server.host}:{password_server.port}"
    settings = password_server.settings()
    assert await reaches_jetstream(dataclasses.replace(settings, url=f"nats://pgsluice:s3cret@{address}"))
    error = await refusal(dataclasses.replace(settings, url=f"nats://pgsluice:wr0ng@{address}"))
    assert "wr0ng" not in str(error)


async def test_no_credentials_are_refused(password_server: NatsServer) -> None:
    assert isinstance(await refusal(password_server.settings()), TerminalError)


async def test_a_token_is_accepted_and_a_wrong_one_refused() -> None:
    with NatsServer(config='authorization { token: "t0ken" }') as server:
        assert await reaches_jetstream(dataclasses.replace(server.settings(), token="t0ken"))
        assert isinstance(await refusal(dataclasses.replace(server.settings(), token="other")), TerminalError)


async def test_a_credentials_file_is_accepted(tmp_path: Path) -> None:
    accounts = NatsAccounts()
    credentials = accounts.write_credentials(tmp_path / "user.creds")
    with NatsServer(config=accounts.config) as server:
        assert await reaches_jetstream(dataclasses.replace(server.settings(), credentials_file=str(credentials)))
        assert isinstance(await refusal(server.settings()), TerminalError)


@dataclasses.dataclass(frozen=True)
class Certificates:
    """A certificate authority with a server's and a client's certificate, in files; and a certificate of another server."""

    authority: Path
    server: Path
    client: Path
    other: Path

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        authority = trustme.CA()
        paths = cls(directory / "ca.pem", directory / "server.pem", directory / "client.pem", directory / "other.pem")
        authority.cert_pem.write_to_path(str(paths.authority))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(paths.server))
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(paths.other))
        authority.issue_cert("pgsluice@example.com").private_key_and_cert_chain_pem.write_to_path(str(paths.client))
        return paths


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[NatsServer]:
    """Asks for a client's certificate as well."""
    files = f'cert_file: "{certificates.server}", key_file: "{certificates.server}", ca_file: "{certificates.authority}"'
    with NatsServer(config=f"tls {{ {files}, verify: true }}") as server:
        yield server


def over_tls(server: NatsServer, certificates: Certificates) -> NatsSettings:
    return dataclasses.replace(
        server.settings(),
        url=f"tls://{server.host}:{server.port}",
        tls_ca=str(certificates.authority),
        tls_cert=str(certificates.client),
        tls_key=str(certificates.client),
    )


async def test_tls_with_certificates_of_both_sides_is_accepted(tls_server: NatsServer, certificates: Certificates) -> None:
    assert await reaches_jetstream(over_tls(tls_server, certificates))


async def test_a_server_that_the_authority_does_not_vouch_for_is_refused(
    tls_server: NatsServer, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates.make(tmp_path)
    error = await refusal(dataclasses.replace(over_tls(tls_server, certificates), tls_ca=str(stranger.authority)))
    assert isinstance(error, TerminalError)
    assert "TLS" in str(error)


async def test_without_an_authority_given_the_machine_s_own_are_asked(tls_server: NatsServer, certificates: Certificates) -> None:
    error = await refusal(dataclasses.replace(over_tls(tls_server, certificates), tls_ca="", tls_cert="", tls_key=""))
    assert isinstance(error, TerminalError)


async def test_a_client_without_a_certificate_is_refused(tls_server: NatsServer, certificates: Certificates) -> None:
    await refusal(dataclasses.replace(over_tls(tls_server, certificates), tls_cert="", tls_key=""))


async def test_a_certificate_file_that_is_none_is_a_usage_error(
    tls_server: NatsServer, certificates: Certificates, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    error = await refusal(dataclasses.replace(over_tls(tls_server, certificates), tls_ca=str(nothing)))
    assert isinstance(error, UsageError)


def asking_for_tls(way: str, port: int, certificates: Certificates) -> NatsSettings:
    """Of a client with a password."""
    plain = dataclasses.replace(NatsServer(port=port).settings(), user="pgsluice", password="s3cret")
    match way:
        case "url":
            return dataclasses.replace(plain, url=plain.url.replace("nats:", "tls:"))
        case "one url of two":
            return dataclasses.replace(plain, url=f"{plain.url},tls://{HOST}:{port}")
        case "authority":
            return dataclasses.replace(plain, tls_ca=str(certificates.authority))
        case "certificate":
            return dataclasses.replace(plain, tls_cert=str(certificates.client), tls_key=str(certificates.client))
        case _:
            return dataclasses.replace(plain, tls_first=True)


@contextlib.asynccontextmanager
async def greeting_in_the_clear() -> AsyncIterator[tuple[int, bytearray]]:
    """The port of a server that greets as a NATS server without TLS, and what clients say to it."""
    said = bytearray()
    info = {"server_id": "x", "version": "2.14.0", "proto": 1, "headers": True, "auth_required": True, "max_payload": 1 << 20}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b" \r\n")
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                said.extend(data)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1], said


@pytest.mark.parametrize("way", ["url", "one url of two", "authority", "certificate"])
async def test_a_server_without_tls_is_told_nothing_where_tls_was_asked_for(way: str, certificates: Certificates) -> None:
    async with greeting_in_the_clear() as (port, said):
        error = await refusal(asking_for_tls(way, port, certificates))
    assert isinstance(error, TerminalError)
    assert "does not offer TLS" in str(error)
    assert bytes(said) == b""


async def test_a_server_without_tls_is_told_no_password_where_tls_comes_first(certificates: Certificates) -> None:
    async with greeting_in_the_clear() as (port, said):
        error = await refusal(asking_for_tls("first", port, certificates))
    assert "handshake_first" in str(error)
    assert b"CONNECT" not in said


def tls_config(certificate: Path, more: str = "") -> str:
    return f'tls {{ cert_file: "{certificate}", key_file: "{certificate}", {more} }}\n'


def asking(server: NatsServer, certificates: Certificates) -> NatsSettings:
    return dataclasses.replace(server.settings(), url=f"tls://{HOST}:{server.port}", tls_ca=str(certificates.authority))


async def test_a_server_that_comes_back_without_tls_is_told_nothing(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with NatsServer(config=tls_config(certificates.server)) as server:
        async with connected(asking(server, certificates), "test") as client:
            server.stop()
            await client.publish("rows", b"s3cret")
            with NatsServer(port=server.port, config=TRACED) as stranger:
                own = stranger.log().count(CREATED)
                await wait_on_loop(lambda: stranger.log().count(CREATED) > own + 1, what="two attempts to reconnect")
            assert "<<- [" not in stranger.log()
            server.start()
            await wait_until_async(lambda: is_answered(client), what="a connection to the server with TLS")
    [told] = [record for record in caplog.records if record.message == "NATS refuses the connection"]
    assert fields_of(told)["reason"] == "the server does not offer TLS"


async def test_a_server_without_tls_that_a_cluster_names_is_told_nothing(certificates: Certificates) -> None:
    ports = free_port(), free_port()
    routes = [
        f'cluster {{ name: c, listen: "{HOST}:{own}", routes: ["nats://{HOST}:{other}"] }}\n'
        for own, other in (ports, ports[::-1])
    ]
    with (
        NatsServer(config=tls_config(certificates.server) + routes[0]) as server,
        NatsServer(config=TRACED + routes[1]) as stranger,
    ):
        client = await connect(asking(server, certificates), "test", LONGEST_S)  # until the two have elected a leader
        async with contextlib.AsyncExitStack() as ending:
            ending.push_async_callback(disconnect, client)
            await wait_on_loop(lambda: stranger.port in {url.port for url in client.servers}, what="the other server's name")
            own = stranger.log().count(CREATED)
            server.kill()
            await wait_on_loop(lambda: stranger.log().count(CREATED) > own, what="an attempt at the other server")
            server.start()
            await wait_until_async(lambda: is_answered(client), what="a connection to the server with TLS")
        assert '"name": "test"' not in stranger.log()


@contextlib.asynccontextmanager
async def naming_another(server: NatsServer, named: str) -> AsyncIterator[int]:
    """The port of somebody on the way to ``server`` who names a server to clients before TLS begins, and passes on the rest."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(server.host, server.port)
        verb, _, content = (await from_server.readline()).partition(b" ")
        info = json.loads(content) | {"connect_urls": [named]}
        writer.write(verb + b" " + json.dumps(info).encode() + b" \r\n")
        await asyncio.gather(pass_on(from_server, writer), pass_on(reader, to_server))

    async with await asyncio.start_server(serve, HOST, 0) as listener:
        yield listener.sockets[0].getsockname()[1]


async def test_a_server_that_somebody_on_the_way_names_is_none_of_ours(certificates: Certificates) -> None:
    """It may have a certificate for its name, as everybody has from a public authority."""
    with NatsServer(config=tls_config(certificates.server)) as server, NatsServer(config=tls_config(certificates.other)) as other:
        named = f"localhost:{other.port}"
        async with naming_another(server, named) as port:
            settings = dataclasses.replace(asking(server, certificates), url=f"tls://{HOST}:{port}")
            async with connected(settings, "test") as client:
                assert {url.port for url in client.servers} == {port}


async def test_tls_is_used_where_the_server_leaves_it_to_its_clients(certificates: Certificates) -> None:
    with NatsServer(config=tls_config(certificates.server) + "allow_non_tls: true") as server:
        assert await reaches_jetstream(server.settings())
        assert await reaches_jetstream(asking(server, certificates))


class TlsFirstServer(NatsServer):
    """It says nothing before TLS, so its log tells when it is there."""

    def _answers(self) -> bool:
        return "Server is ready" in self.log()


async def test_a_server_that_begins_with_tls_is_reached_when_we_do_so_too(certificates: Certificates) -> None:
    with TlsFirstServer(config=tls_config(certificates.server, "handshake_first: true")) as server:
        settings = asking(server, certificates)
        assert await reaches_jetstream(dataclasses.replace(settings, tls_first=True))
        with pytest.raises(PgsluiceError, match="nats-tls-first"):
            await connect(settings, "test", deadline_s=1)

"""How a connection to NATS proves who it is, and to whom it speaks, against real servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from pgsluice.shared.broker.connection import connect
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from tests.servers import NatsServer
from tests.servers.nats_accounts import NatsAccounts


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
    """A certificate authority with a server's and a client's certificate, in files."""

    authority: Path
    server: Path
    client: Path

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        authority = trustme.CA()
        paths = cls(directory / "ca.pem", directory / "server.pem", directory / "client.pem")
        authority.cert_pem.write_to_path(str(paths.authority))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(paths.server))
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

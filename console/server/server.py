"""``pgsluice server``: from its checks to its end. What it begins it ends in the opposite order; the groups do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from typing import Any

import uvicorn

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.executor.executors import Executors, RunPlaces
from pgsluice.console.executor.scheduling import runnable
from pgsluice.console.pipelines.pipeline_catalog import PipelineCatalog
from pgsluice.console.pipelines.pipeline_document import PipelineDocument
from pgsluice.console.pipelines.pipelines_file import read_pipelines
from pgsluice.console.pipelines.places import read_bounds, read_places
from pgsluice.console.runner.runner import Runner
from pgsluice.console.server.access.entrance import FIRST_TOKEN, Entrance, state_directory
from pgsluice.console.server.access.origin import OwnOrigin, Proxies, address_of, is_loopback, is_secure, own_hosts
from pgsluice.console.server.access.request_rates import RequestRates
from pgsluice.console.server.api.table import all_endpoints
from pgsluice.console.server.application import make_application
from pgsluice.console.server.audit import COUNTING_S, AuditStream
from pgsluice.console.server.bounded_connection import ANSWERED_CONNECTIONS, RECEIVING_S, BoundedConnection
from pgsluice.console.server.fair_share import FairShare
from pgsluice.console.server.live.event_stream import EventStreams
from pgsluice.console.server.live.group_looks import GroupLooks
from pgsluice.console.server.live.series import SeriesStore, record_series
from pgsluice.console.server.parts import ServerParts
from pgsluice.console.server.repeated_requests import RepeatedRequests
from pgsluice.replicator.tasks import cancel, repeat, run_until_first
from pgsluice.shared import telemetry
from pgsluice.shared.broker.connection import connect, disconnect
from pgsluice.shared.config.kinds import split_address
from pgsluice.shared.config.option import PG_FLO_PREFIX, PREFIX
from pgsluice.shared.config.server_settings import ServerSettings, TokenSettings
from pgsluice.shared.errors import TransientError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings
from pgsluice.shared.process import stop_signals
from pgsluice.shared.process.listening import listen

GRACE_S = 5  # for answers under way when the server ends
KEEP_ALIVE_S = 75
TIDY_INTERVAL_S = 600.0
TRIALS_AT_ONCE = 3
CHECKS_AT_ONCE = 2

log = telemetry.logger(__name__)


def run(settings: ServerSettings, given: Mapping[str, str]) -> None:
    """Serves until a signal stops it. ``given`` are this command's flags, as variables for the runs of pipelines. Raises
    UsageError for an address that would not be safe and for files of certificates and about pipelines that cannot be used,
    TerminalError for an address that is not to be had, TransientError when NATS does not answer within ``connect_timeout_s``."""
    check_address(settings.entrance)
    check_certificate(settings.entrance)
    check_pipelines(settings.pipelines)
    forget_libpq_defaults()
    asyncio.run(_serve(settings, given))


def check_address(settings: TokenSettings) -> None:
    """Tokens cross the network in the clear without TLS."""
    host, _ = split_address(settings.listen)
    if not is_loopback(host) and not settings.tls_cert and not settings.behind_proxy:
        raise UsageError(
            f"the server would listen at {settings.listen}, where others reach it, without TLS",
            "give server-tls-cert and server-tls-key, or behind-proxy with a proxy that speaks https, or listen at 127.0.0.1",
        )
    if not is_loopback(host) and settings.behind_proxy and not settings.proxies:
        raise UsageError(
            f"the server would listen at {settings.listen} for a proxy whose address it does not know",
            "give the proxy's address in server-proxies, or listen at 127.0.0.1",
        )
    Proxies.of(settings)


def check_certificate(settings: TokenSettings) -> None:
    """Checks the certificate; otherwise browsers would only report that the connection was reset."""
    if not settings.tls_cert:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")  # there is no terminal to ask
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise UsageError(
            f"server-tls-cert {settings.tls_cert} and server-tls-key {settings.tls_key} cannot be used ({reason})",
            "give a certificate and the private key of that certificate, both in PEM form and without a pass phrase",
        ) from None


def forget_libpq_defaults() -> None:
    """Removes libpq's defaults from this process and from its children: where a document names no password, libpq would
    take passwords of the server's user, from variables and from ~/.pgpass."""
    for name in list(os.environ):
        if name.startswith("PG") and not name.startswith((PREFIX, PG_FLO_PREFIX)):
            del os.environ[name]
    os.environ["PGPASSFILE"] = os.path.join(os.devnull, "none")  # libpq would warn of an existing path that is no file


def check_pipelines(settings: CatalogSettings) -> None:
    """Checks the files at the start. They are read again whenever they are needed; errors are reported at once here."""
    if settings.file:
        read_pipelines(settings.file)
    if settings.places:
        read_places(settings.places)


async def _serve(settings: ServerSettings, given: Mapping[str, str]) -> None:
    host, port = split_address(settings.entrance.listen)
    with contextlib.closing(listen(host, port, "listen")) as listener:
        async with _begun(settings, given, listener.getsockname()[1]) as parts:
            server = _HttpServer(_http_settings(parts))
            call_soon = asyncio.get_running_loop().call_soon_threadsafe
            ended = asyncio.ensure_future(_ended_task(parts))
            with stop_signals.calling(lambda: call_soon(server.end)):
                _welcome(parts)
                ended.add_done_callback(lambda _: server.end())
                await server.serve([listener])
                await _store_rest(parts)
                await cancel([ended]) if not ended.done() else ended.result()
                log.info("server stopped")


async def _ended_task(parts: ServerParts) -> None:
    """Runs the background tasks, until it is cancelled; raises the error that ended one of them: none may die
    unnoticed."""
    calls = [parts.looks.run(), record_series(parts.looks, parts.series), _tidy(parts), _store_refusals(parts)]
    if parts.runner is not None and parts.executors is not None:
        calls += [parts.runner.run(), parts.executors.run()]
    await run_until_first(calls)
    raise TransientError("a background task of the server ended", "start the server again")


async def _tidy(parts: ServerParts) -> None:
    await repeat(parts.repeated.remove_old, TIDY_INTERVAL_S, "expired answers could not be removed")


async def _store_refusals(parts: ServerParts) -> None:
    await repeat(parts.audit.store_counts, COUNTING_S, "the number of refused writes could not be written into the audit")


async def _store_rest(parts: ServerParts) -> None:
    """Writes the counts of the minute in which the server ends into the audit."""
    try:
        await parts.audit.store_counts(at_end=True)
    except TransientError as error:
        log.warning("the last number of refused writes could not be written into the audit", reason=str(error))


class _HttpServer(uvicorn.Server):
    """A server that leaves signals to us, and waits no longer than the deadline for a client to begin TLS."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's startup, for a socket that listens already, with the deadline that uvicorn has no setting for."""
        loop, config = asyncio.get_running_loop(), self.config

        def connection() -> BoundedConnection:
            return BoundedConnection(config, self.server_state, self.lifespan.state, loop)

        tls: dict[str, Any] = {"ssl": config.ssl, "ssl_handshake_timeout": RECEIVING_S} if config.ssl else {}
        self.servers = [await loop.create_server(connection, sock=each, backlog=config.backlog, **tls) for each in sockets or ()]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.should_exit = True


def _http_settings(parts: ServerParts) -> uvicorn.Config:
    settings = parts.settings.entrance
    return uvicorn.Config(
        make_application(parts, all_endpoints(parts.version)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # it would take the client's own word for who it is: application takes the proxy's
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=ANSWERED_CONNECTIONS,
        lifespan="off",
    )


@contextlib.asynccontextmanager
async def _begun(settings: ServerSettings, given: Mapping[str, str], port: int) -> AsyncIterator[ServerParts]:
    directory = state_directory(settings.entrance)
    entrance = Entrance.of(directory, is_secure=is_secure(settings.entrance))
    client = await connect(settings.nats, "pgsluice server", settings.connect_timeout_s)
    parsing, checks = ThreadPoolExecutor(1, "pgsluice-parse"), ThreadPoolExecutor(CHECKS_AT_ONCE, "pgsluice-check")
    try:
        control, audit = ControlBucket(client), AuditStream(client, settings.replicas)
        documents = DocumentStore(control, GroupDocument)
        bounds = partial(read_bounds, settings.pipelines.places)
        pipelines = PipelineCatalog(settings.pipelines, settings.nats, None, control)
        looks = GroupLooks(client, documents, bounds)
        runs = RunPlaces({**os.environ, **given}, directory / "runs", settings.replicas)
        await control.make(settings.replicas)
        await audit.make()
        yield ServerParts(
            settings=settings,
            version=version("pgsluice"),
            client=client,
            origin=_origin(settings.entrance, entrance, port),
            proxies=Proxies.of(settings.entrance),
            entrance=entrance,
            rates=RequestRates(),
            control=control,
            documents=documents,
            bounds=bounds,
            pipelines=pipelines,
            pipeline_documents=DocumentStore(control, PipelineDocument),
            audit=audit,
            repeated=RepeatedRequests(control),
            looks=looks,
            streams=EventStreams(looks, entrance.is_good),
            series=SeriesStore(),
            trying=FairShare(TRIALS_AT_ONCE),
            parsing=parsing,
            checks=checks,
            executors=Executors(client, partial(runnable, pipelines), runs) if settings.runs else None,
            runner=Runner(client, control, pipelines, bounds, directory, settings.nats) if settings.runs else None,
        )
    finally:
        for executor in (parsing, checks):
            executor.shutdown(wait=False, cancel_futures=True)
        await disconnect(client)


def _origin(settings: TokenSettings, entrance: Entrance, port: int) -> OwnOrigin:
    host, _ = split_address(settings.listen)
    names = own_hosts(host, settings.hosts) | entrance.own_names(host)
    return OwnOrigin(names, port, is_secure(settings), settings.behind_proxy)


def _welcome(parts: ServerParts) -> None:
    """Logs the URL; prints the sign-in link only to a terminal, because logs may be shared."""
    settings, entrance = parts.settings.entrance, parts.entrance
    address = address_of(settings, parts.origin.port)
    made = entrance.make_first_token()
    log.info("serving", address=address, state_directory=str(entrance.state_directory))
    if made is not None:
        log.info("a first token was made", file=str(made), name=FIRST_TOKEN)
    first = entrance.tokens.named(FIRST_TOKEN)
    if first is not None and sys.stderr.isatty():
        sys.stderr.write(f"\nOpen this link within ten minutes; it works once:\n  {entrance.link_of(address, first)}\n\n")
    else:
        log.info("'pgsluice token link' prints a link for a browser")

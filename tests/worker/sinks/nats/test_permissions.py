"""A worker's user lacks one of the printed permissions: ``check``, or the worker that waits, names it and what to grant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.errors import TransientError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.wire.nats_permissions import NatsPermissions, client_permissions
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch, position
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from pgsluice.worker.sinks.nats.findings import find
from pgsluice.worker.sinks.nats.prepared_target import needed_permissions
from tests.logged import fields_of
from tests.servers import NatsServer
from tests.servers.permitted_nats import PASSWORD
from tests.worker.sinks.nats.target import NatsDestination, nats_settings
from tests.worker.sinks.settings import worker_settings

GROUP, STREAM = "orders", "orders-out"
INBOX = f"_INBOX_{GROUP}"
WHOLE = needed_permissions(nats_settings(STREAM), makes=True)
OF_CHANGES = f"{STREAM}.*.*.*"
TRIED = [subject for subject in WHOLE.publish if subject != OF_CHANGES]


def entry(user: str, missing: str) -> str:
    needed = client_permissions(INBOX) + WHOLE
    given = NatsPermissions(tuple(subject for subject in needed.publish if subject != missing), needed.subscribe)
    return f"{{ user: {user}, password: {PASSWORD}, {given.block()} }}"


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """Users with all permissions but one, by the place of that one."""
    entries = [entry(f"without{place}", missing) for place, missing in enumerate(("", *WHOLE.publish))]
    with NatsServer(config="authorization {\nusers = [\n" + "\n".join(entries) + "\n]\n}\n") as server:
        yield server


def user_without(nats: NatsServer, missing: str) -> NatsSettings:
    user = f"without{('', *WHOLE.publish).index(missing)}"
    return replace(nats.settings(), user=user, password=PASSWORD, inbox_prefix=INBOX)


def test_no_permission_is_missing_for_who_has_all(nats: NatsServer) -> None:
    settings = user_without(nats, "")
    sink = NatsDestination(settings, GROUP).new_sink()
    sink.open()
    assert apply(sink, batch([1])) == position(1)
    sink.close()
    assert find(worker_settings(GROUP, settings), nats_settings(STREAM), NOTHING_KNOWN) == []


@pytest.mark.parametrize("missing", TRIED)
def test_a_check_names_the_permission_that_is_missing_and_prints_all(nats: NatsServer, missing: str) -> None:
    worker = worker_settings(GROUP, user_without(nats, missing))
    [found] = find(worker, nats_settings(STREAM), NOTHING_KNOWN)
    assert (found.severity, found.check) == (Severity.ERROR, "nats-permissions")
    assert found.fact == f"the NATS user may not: publish {missing.lower()}"
    assert all(f'"{subject}"' in found.remedy for subject in WHOLE.publish)


def test_a_worker_that_may_not_publish_a_change_says_so_and_waits(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    sink = NatsDestination(user_without(nats, OF_CHANGES), GROUP).new_sink()
    sink.open()
    with pytest.raises(TransientError, match=rf"may not publish {STREAM}\.public\.events\.insert.*pgsluice nats permissions"):
        apply(sink, batch([2]))
    sink.close()
    [told] = [record for record in caplog.records if "NATS denies a subject" in record.message]
    assert fields_of(told)["denied"] == f"publish {STREAM}.public.events.insert"


def test_a_worker_that_may_not_look_at_its_stream_says_so_and_waits(nats: NatsServer) -> None:
    sink = NatsDestination(user_without(nats, f"$JS.API.STREAM.INFO.{STREAM}"), GROUP).new_sink()
    with pytest.raises(TransientError, match=r"may not publish \$js\.api\.stream\.info.*pgsluice nats permissions"):
        sink.open()
    sink.close()

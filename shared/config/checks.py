"""What one option cannot say alone: options that exclude or need each other, names with rules of their own, and what is
understood but not available yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pgsluice.shared.config.options import BY_NAME, Role
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.spark.memory import check_cluster
from pgsluice.shared.wire.names import GroupNames, check_worker_name

MODES = ("stream", "copy", "copy-and-stream")


def problems_between(values: Values, roles: Collection[Role], missing: Callable[[str], UsageError]) -> Iterator[UsageError]:
    """Everything wrong with ``values`` as a whole. ``missing`` makes the error for an option that must be given."""
    yield from _invalid_names(values)
    yield from _tls_problems(values)
    yield from _connection_strings(values)
    if values.given("nats-user") != values.given("nats-password"):
        yield missing("nats-password" if values.given("nats-user") else "nats-user")
    if len(ways := _nats_identities(values)) > 1:
        yield UsageError(f"{' and '.join(ways)} are both given", "NATS takes one of them; remove the others")
    if Role.STATUS in roles and values.given("host"):
        yield from (missing(name) for name in ("dbname", "user") if not values.given(name))
    if Role.REPLICATOR in roles:
        yield from _mode_problems(values)
    if Role.WORKER in roles or (Role.REPLICATOR in roles and (values.switch("copy") or values.switch("copy-and-stream"))):
        yield from _cluster_problems(values)
    if values.given("format"):
        yield from _format_problems(values, roles)


def _format_problems(values: Values, roles: Collection[Role]) -> Iterator[UsageError]:
    """A file may say ``format: parquet`` for the file worker that it serves too; others do not mind."""
    form, place = values.text("format"), values.places["format"]
    if Role.FILE not in roles and form == "parquet" and place in (BY_NAME["format"].flag, BY_NAME["format"].variable):
        yield UsageError(f"format 'parquet' ({place}) is of files alone", "write json or pg-flo, or start 'pgsluice worker file'")
    if not values.switch("transactions"):
        return
    where = {"parquet": "_xid and _position", "pg-flo": "LSN and Position"}.get(form)
    if where is not None and (form == "pg-flo" or Role.FILE in roles):
        yield UsageError(
            f"transactions ({values.places['transactions']}) has no meaning with format: {form} ({place})",
            f"remove it: every {'row' if form == 'parquet' else 'line'} names its transaction in {where}",
        )


def _invalid_names(values: Values) -> Iterator[UsageError]:
    for name, check in (("group", GroupNames), ("name", check_worker_name)):
        if values.given(name):
            try:
                check(values.text(name))
            except UsageError as error:
                yield UsageError(f"{error.fact} ({values.places[name]})", error.remedy)


def _connection_strings(values: Values) -> Iterator[UsageError]:
    """A URL or DSN where one part of it belongs: libpq looks such a host up, and takes such a name apart. It may hold a password,
    so it is not shown."""
    for prefix in ("", "target-"):
        for name, thing in ((prefix + "host", "a host"), (prefix + "dbname", "a database's name")):
            if "://" in values.text(name) or "=" in values.text(name):
                yield UsageError(
                    f"{name} ({values.places[name]}) takes {thing}, not a URL or a connection string",
                    f"give its parts: {prefix}host: db.example.com, {prefix}port: 5432, {prefix}dbname: shop, {prefix}user: app",
                )


def _tls_problems(values: Values) -> Iterator[UsageError]:
    for key, certificate in (("nats-tls-key", "nats-tls-cert"), ("sslkey", "sslcert"), ("target-sslkey", "target-sslcert")):
        if values.given(key) and not values.given(certificate):
            yield UsageError(
                f"{key} is given ({values.places[key]}) without {certificate}", f"give {certificate} too, or remove {key}"
            )


def _nats_identities(values: Values) -> list[str]:
    return [name for name in ("nats-user", "nats-token", "nats-credentials") if values.given(name)]


def _cluster_problems(values: Values) -> Iterator[UsageError]:
    try:
        check_cluster(values.pairs("spark"))
    except UsageError as error:
        yield error


def _mode_problems(values: Values) -> Iterator[UsageError]:
    chosen = [f"{mode} ({values.places[mode]})" for mode in MODES if values.switch(mode)]
    if len(chosen) > 1:
        yield UsageError(f"several modes are given: {', '.join(chosen)}", "give one of them; a switch is taken back with =false")
    if values.switch("copy") and values.given("until-lsn"):
        yield UsageError(
            f"until-lsn ({values.places['until-lsn']}) has no meaning with copy ({values.places['copy']})",
            "remove it, or give copy-and-stream",
        )
    if values.given("recopy") and not (values.switch("copy") or values.switch("copy-and-stream")):
        yield UsageError(
            f"recopy ({values.places['recopy']}) has no meaning without a copy", "give copy-and-stream too, or remove it"
        )
    if values.switch("track-ddl"):
        yield UsageError(
            f"track-ddl ({values.places['track-ddl']}) is not available in this version",
            "remove it and change both tables yourself, the target first",
        )

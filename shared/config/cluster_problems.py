"""Errors in settings because tasks run on a Spark cluster."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.hosts import is_of_one_machine
from pgsluice.shared.spark.spark_settings import DEFAULT_MASTER, check_cluster, has_other_machines


def cluster_problems(values: Values, *addresses: str) -> Iterator[UsageError]:
    """``addresses`` are the options with the servers that tasks connect to."""
    try:
        check_cluster(values.pairs("spark"))
    except UsageError as error:
        yield error
    yield from address_problems(values, *addresses)


def address_problems(values: Values, *addresses: str) -> Iterator[UsageError]:
    """Yields errors for addresses that mean each machine itself, if tasks run on other machines."""
    master = values.pairs("spark").get("spark.master", DEFAULT_MASTER)
    if not has_other_machines(master):
        return
    for option in addresses:
        for host in _hosts(values.text(option)):
            if is_of_one_machine(host):
                yield UsageError(
                    f"{values.named(option)} names {host}, which on each machine of {master} means that machine itself",
                    "tasks connect to it too: give the address under which the executors reach it",
                )


def _hosts(text: str) -> Iterator[str]:
    """Yields the hosts in a list of hosts or of URLs."""
    for address in text.split(","):
        host = (urlsplit(address).hostname or "") if "://" in address else address.strip()
        if host:
            yield host

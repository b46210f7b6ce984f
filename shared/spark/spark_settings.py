"""Spark settings in the configuration: their names, and the meaning of a master's name.

There are some short names, and every name of Spark's own. Settings that a cluster needs are checked, so that its tasks
can be trusted with their data, and can connect to their servers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pgsluice.shared.errors import UsageError
from pgsluice.shared.hosts import is_of_one_machine

_LOCAL_MASTER = re.compile(r"local(?:\[\s*(?P<tasks>\*|[0-9]+)\s*(?:,\s*[0-9]+\s*)?\])?")
DEFAULT_MASTER = "local[*]"
_AUTHENTICATION = "spark.authenticate"
_ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
_INSECURE = "spark.pgsluice.insecure"
"""A setting that Spark does not know: only ``check_cluster`` reads it."""

PYTHON = "spark.pyspark.python"
MOST_CORES = "spark.cores.max"

_SHORT_NAMES = {
    "master": ("spark.master",),
    "memory": ("spark.driver.memory", "spark.executor.memory"),
    "python": (PYTHON,),
    "insecure": (_INSECURE,),
}


def full_names(pairs: Mapping[str, str]) -> dict[str, str]:
    """Returns ``pairs`` under Spark's own names; raises ValueError for a name that is neither short nor Spark's, or
    given twice.

    ``memory`` is the driver's and each executor's heap; where the tasks run in the driver (``local[n]``) only the
    former exists. ``python`` is what tasks run in, on the executors' machines. ``insecure`` is for ``check_cluster``.
    """
    full: dict[str, str] = {}
    for name, value in pairs.items():
        if name not in _SHORT_NAMES and not name.startswith("spark."):
            raise ValueError(f"holds the unknown setting '{name}' (known: {', '.join(_SHORT_NAMES)} and every spark.* name)")
        for full_name in _SHORT_NAMES.get(name, (name,)):
            if full_name in full:
                raise ValueError(f"holds {full_name} twice, once under a short name")
            full[full_name] = value
    return full


def is_local(master: str) -> bool:
    """Returns whether tasks run in processes that the driver's own JVM starts. ``local-cluster`` is a cluster."""
    return _LOCAL_MASTER.fullmatch(master.strip()) is not None


def local_tasks(master: str) -> int | None:
    """Returns the number of tasks that a local master runs at the same time; None for a cluster."""
    match = _LOCAL_MASTER.fullmatch(master.strip())
    if match is None:
        return None
    return (os.cpu_count() or 1) if match["tasks"] == "*" else int(match["tasks"] or 1)


def with_most_cores(settings: Mapping[str, str], cores: int) -> dict[str, str]:
    """Returns the settings with a limit on the cores of a cluster, unless there is one. Without it a standalone master
    gives all free cores to the first application that asks, and a worker and a copy of its group wait for each other."""
    bound = {} if is_local(settings.get("spark.master", DEFAULT_MASTER)) else {MOST_CORES: str(cores)}
    return bound | dict(settings)


def has_other_machines(master: str) -> bool:
    """Returns whether executors may be on other machines than the driver. A standalone master that listens on a
    loopback address has none."""
    master = master.strip()
    if is_local(master) or master.startswith("local-cluster"):
        return False
    if not master.startswith("spark://"):
        return True
    hosts = [urlsplit(f"//{address}").hostname or "" for address in master.removeprefix("spark://").split(",")]
    return not all(is_of_one_machine(host) for host in hosts)


def check_cluster(settings: Mapping[str, str]) -> None:
    """Raises UsageError when tasks run elsewhere and Spark's connections are not both authenticated and encrypted: they
    carry rows and passwords, and give both to any client. For a local master the defaults of pgsluice suffice;
    ``insecure`` is for a network without other users."""
    master = settings.get("spark.master", DEFAULT_MASTER)
    is_trusted = _is_on(settings, _AUTHENTICATION) and any(_is_on(settings, name) for name in _ENCRYPTION)
    if is_local(master) or is_trusted or _is_on(settings, _INSECURE):
        return
    secret = "" if master.startswith(("yarn", "k8s")) else " and spark.authenticate.secret, the cluster's own"
    raise UsageError(
        f"spark.master {master} runs tasks over the network without {_AUTHENTICATION} and {' or '.join(_ENCRYPTION)}",
        f"passwords and rows would be open to the network: set {_AUTHENTICATION}: true{secret}, and {_ENCRYPTION[0]}: true"
        " (insecure: true allows that, in a network without other users)",
    )


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").strip().lower() == "true"

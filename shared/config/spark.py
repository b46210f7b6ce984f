"""The names of Spark settings in our configuration: two short ones, and every name of Spark's own."""

from __future__ import annotations

from collections.abc import Mapping

_SHORT_NAMES = {
    "master": ("spark.master",),
    "memory": ("spark.driver.memory", "spark.executor.memory"),
}


def full_names(pairs: Mapping[str, str]) -> dict[str, str]:
    """``pairs`` under Spark's own names; raises ValueError for a name that is neither short nor Spark's, or given twice.

    ``memory`` is the driver's and each executor's heap; where the tasks run in the driver (``local[n]``) only the former
    exists.
    """
    full: dict[str, str] = {}
    for name, value in pairs.items():
        if name not in _SHORT_NAMES and not name.startswith("spark."):
            raise ValueError(f"holds the unknown setting '{name}' (known: master, memory and every spark.* name)")
        for full_name in _SHORT_NAMES.get(name, (name,)):
            if full_name in full:
                raise ValueError(f"holds {full_name} twice, once under a short name")
            full[full_name] = value
    return full

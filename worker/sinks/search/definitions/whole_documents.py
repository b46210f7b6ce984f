"""Comparing what a server gives of a document with what its index has of it: pure.

What is not given is lost where documents are written again, and servers leave things out in many ways: vectors, unless one asks
for them; fields that a template excludes. So each document is asked which fields its index has of it, by queries with names that
match what exists, and compared with what is given. What no index has (a text that is too long, ``%whole``) is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pgsluice.shared.errors import TerminalError
from pgsluice.worker.sinks.search.server_kind import Properties

MOST_COMPARED = 1000
"""The most fields of a document that are compared: servers take 1,024 clauses in a query."""

_NO_VALUES = frozenset({"object", "nested", "alias", "constant_keyword"})
_VALUES_OF_ITS_OWN = ("script", "null_value")


def compared_fields(properties: Properties) -> list[str]:
    """Returns the fields whose content equals the documents'; vectors, which are large and easily left out, come first.
    Objects, each of whose fields would be a clause, are not compared."""
    copies = {name for each in properties.values() for name in _names(each.get("copy_to", ()))}
    own = [name for name, each in properties.items() if name not in copies and _is_compared(each)]
    return sorted(own, key=lambda name: "vector" not in properties[name].get("type", ""))[:MOST_COMPARED]


def query_of(fields: Iterable[str]) -> dict[str, Any]:
    """Returns the query for all documents that names those of ``fields`` that the index has of each."""
    existing = [{"exists": {"field": name, "_name": name}} for name in fields]
    return {"bool": {"must": [{"match_all": {}}], "should": existing}}


def check_whole(hits: Iterable[Mapping[str, Any]], table: str) -> None:
    """Raises TerminalError for a document that is given without a field which its index has."""
    for hit in hits:
        given = hit.get("_source") or {}
        kept_back = [name for name in hit.get("matched_queries", ()) if given.get(name) is None]
        if kept_back:
            raise TerminalError(
                f"the search server gives documents of '{table}' without field '{kept_back[0]}', which they have; "
                "nothing was altered",
                f"run 'pgsluice search reindex {table}', which copies the table into a new index",
            )


def _is_compared(definition: Properties) -> bool:
    has_values = definition.get("type", "object") not in _NO_VALUES
    return has_values and not any(name in definition for name in _VALUES_OF_ITS_OWN)


def _names(copy_to: str | Iterable[str]) -> Iterable[str]:
    return (copy_to,) if isinstance(copy_to, str) else copy_to

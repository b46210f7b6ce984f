"""The kinds of search servers, and their differences: pure.

| | OpenSearch | Elasticsearch | |---|---|---| | json | ``flat_object`` | ``flattened``, twenty levels deep by default |
| vector(n) | ``knn_vector`` | ``dense_vector`` of at most 4,096 dimensions | | a document's vectors | given | from 9.2
on left out, unless its index or the request includes them |

Neither has all types of fields built in: modules and plugins bring some. A field of a type that a server does not have
becomes a type of every server: the documents are the same, and less of them can be searched.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Properties = dict[str, Any]
"""Fields of an index, as its mapping has them."""

_STORED_ONLY: Properties = {"type": "object", "enabled": False}
SUBSTITUTES: Mapping[str, Properties] = {
    "scaled_float": {"type": "double"},
    "flat_object": _STORED_ONLY,
    "flattened": _STORED_ONLY,
    "knn_vector": {"type": "float"},
    "dense_vector": {"type": "float"},
}
"""Substitutes by the type that a server may lack."""

_HIDES_VECTORS = 9, 2
"""The first version of Elasticsearch that leaves vectors out."""
_UNKNOWN_TYPE = re.compile(r"(?:[Nn]o handler for|[Mm]apper) type \[(\w+)\]")


class Dialect(enum.Enum):
    """The names that a server has for types of fields."""

    OPENSEARCH = "opensearch"
    ELASTICSEARCH = "elasticsearch"


@dataclass(frozen=True, slots=True)
class ServerKind:
    """``hides_vectors``: a document is returned without its vectors, unless its index or the request includes them, by
    a parameter that other servers refuse."""

    dialect: Dialect
    hides_vectors: bool = False

    @classmethod
    def of(cls, version: Mapping[str, Any]) -> ServerKind:
        """Returns the kind by the server's version."""
        if version.get("distribution") == "opensearch":
            return cls(Dialect.OPENSEARCH)
        numbers = re.match(r"(\d+)\.(\d+)", str(version.get("number", "")))
        return cls(Dialect.ELASTICSEARCH, numbers is not None and (int(numbers[1]), int(numbers[2])) >= _HIDES_VECTORS)

    @property
    def index_settings(self) -> dict[str, Any]:
        """Settings of new indexes, with which they give vectors as they were sent."""
        return {"mapping.exclude_source_vectors": False} if self.hides_vectors else {}

    @property
    def whole_source(self) -> dict[str, Any]:
        """The part of a search, in addition to its query, that requests all of each document."""
        return {"_source": {"exclude_vectors": False}} if self.hides_vectors else {}


def unknown_type(reason: str) -> str:
    """Returns the type of field for which a server refuses a mapping because it does not have it; "" for another reason."""
    found = _UNKNOWN_TYPE.search(reason)
    return found[1] if found else ""


def without_type(properties: Properties, unknown: str) -> Properties:
    """Returns the fields with a substitute for a type that the server does not have."""
    return {name: SUBSTITUTES[unknown] if each.get("type") == unknown else each for name, each in properties.items()}


_ADDED = ("ignore_malformed", "depth_limit")
"""Parameters that a field of the right type is given where it lacks them: servers let these be altered."""


def is_missing(there: Properties | None, definition: Properties) -> bool:
    """Returns whether an index that has ``there`` in its place needs the field."""
    if there is None or there.get("type") != definition.get("type"):
        return there is None
    return any(name in definition and there.get(name) != definition[name] for name in _ADDED)


def stands_for(is_type: str, wanted: str) -> bool:
    """Returns whether a field has the type that it is to have, or what it became where a server did not have that."""
    return is_type in (wanted, SUBSTITUTES.get(wanted, {}).get("type", wanted))


def kept_less(source: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Returns what of a mapping's ``_source``, or of an index's settings, makes it give documents otherwise than they were sent;
    "" for nothing."""
    mode = source.get("mode") or settings.get("mapping", {}).get("source", {}).get("mode") or "stored"
    if str(mode).lower() != "stored":
        return f"the mode {mode} of _source"
    if str(source.get("enabled", True)).lower() == "false":
        return "_source is not kept"
    return next((f"_source {name}" for name in ("includes", "excludes") if source.get(name)), "")

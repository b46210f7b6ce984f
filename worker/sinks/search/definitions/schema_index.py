"""The history of definitions, in a separate index: a document for each, by its position.

So a definition that comes again stores the same document with the same version. The index is made when the first one
comes; like those of tables it is read by an alias.
"""

from __future__ import annotations

from typing import Any

import orjson

from pgsluice.shared.definitions.wording import in_words
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.position import LSN, Position, format_time
from pgsluice.shared.wire.published_definition import concerned, kind_of
from pgsluice.worker.sinks.search.bulk import Operation
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery
from pgsluice.worker.sinks.search.document_fold import Defined
from pgsluice.worker.sinks.search.index_name import Generation
from pgsluice.worker.sinks.search.server_connection import ServerConnection, path_of

_KEYWORD = {"type": "keyword"}
PROPERTIES: dict[str, Any] = {
    "position": _KEYWORD,
    "group": _KEYWORD,
    "committed_at": {"type": "date", "format": "strict_date_optional_time"},
    "kind": _KEYWORD,
    "tag": _KEYWORD,
    "oid": {"type": "long"},
    "schema": _KEYWORD,
    "name": _KEYWORD,
    "changes": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 8191}}},
    "definition": {"type": "object", "enabled": False},
}
"""``changes`` are words for readers, ``definition`` is the whole message, as in lines, which is stored and not
searched."""

_EXISTS = "resource_already_exists_exception"


def store_history(
    connection: ServerConnection, delivery: BulkDelivery, name: str, group: str, definitions: list[Defined]
) -> None:
    """Raises as ``BulkDelivery``, and TerminalError when the index does not take one."""
    index = Generation(name, 1)
    _ensure(connection, index)
    delivery.deliver([_operation(index, group, defined) for defined in definitions])
    if delivery.tally.refused:
        answer = delivery.tally.refused[0].answer
        raise TerminalError(
            f"index '{index.name}' of search-schema-index does not take a definition ({answer.error or answer.status})",
            "it is not as pgsluice makes it: remove it, or give another name",
        )


def _ensure(connection: ServerConnection, index: Generation) -> None:
    """Several tasks may do so at one moment."""
    mappings = {"dynamic": "strict", "_meta": {"pgsluice": {"table": ""}}, "properties": PROPERTIES}
    body = {"mappings": mappings, "aliases": {index.alias: {}, index.write_alias: {}}}
    status, answer = connection.ask("PUT", f"/{path_of(index.name)}", body, accepted=(400,))
    kind = answer.get("error", {}).get("type")
    if status == 400 and kind != _EXISTS:
        raise TerminalError(
            f"the search server does not make index '{index.name}' of search-schema-index ({kind})",
            "give it another name, in lower case",
        )


def _operation(index: Generation, group: str, defined: Defined) -> Operation:
    at, definition, committed_at = defined
    position = str(Position(LSN(at.version), at.ordinal))
    about = concerned(definition.event)
    named = {} if about is None else {"oid": about.oid, "schema": about.schema, "name": about.name}
    document = {
        "position": position,
        "group": group,
        "committed_at": format_time(committed_at) or None,
        "kind": kind_of(definition.event),
        "tag": definition.event.tag,
        **named,
        "changes": list(in_words(definition)),
        "definition": orjson.Fragment(definition.encode()),
    }
    row_id = orjson.dumps(f"{group} {position}")
    return Operation(index.write_alias, row_id, at.version, at.ordinal, orjson.dumps(document) + b"\n")

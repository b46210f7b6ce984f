"""The API's description in OpenAPI 3.1, made of the endpoint table: nothing in it is written twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from pgsluice.console.server import problem, typed_json
from pgsluice.console.server.access.entrance import SESSION_COOKIE
from pgsluice.console.server.endpoint_table import PREFIX, Endpoint, Rows
from pgsluice.console.server.problem import ProblemContent, ProblemKind

_PATH_PARAMETER = re.compile(r"{(\w+)}")


def describe(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """Returns the document, as JSON would have it."""
    definitions: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.verb.lower()] = _operation(endpoint, definitions)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pgsluice",
            "version": version,
            "description": "Groups that replicate PostgreSQL: their desired state, their positions and their errors.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": SESSION_COOKIE,
                    "description": "Over https its name begins with __Host-",
                },
            },
        },
        "security": [{"token": []}, {"session": []}],
    }


def _operation(endpoint: Endpoint, definitions: dict[str, Any]) -> dict[str, Any]:
    is_for_some = "if the body asks for row values, " if callable(endpoint.rows) else ""
    right = f" and {is_for_some}the right to see row values" if endpoint.rows is not Rows.STAY else ""
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": f"For the role {endpoint.role.value}{right}.",
        "parameters": list(_parameters(endpoint, definitions)),
        "responses": _responses(endpoint, definitions),
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": typed_json.schema(endpoint.body, definitions)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(endpoint: Endpoint, definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _PATH_PARAMETER.findall(endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    if endpoint.query is not None:
        hints = get_type_hints(endpoint.query, include_extras=True)
        for each in fields(endpoint.query):
            is_required = each.default is MISSING and each.default_factory is MISSING
            schema = typed_json.schema(hints[each.name], definitions)
            yield {"name": each.name, "in": "query", "required": is_required, "schema": schema} | _with_commas(schema)
    if endpoint.names_revision:
        description = 'The ETag of the revision to replace ("7"); * for any revision'
        yield {"name": "If-Match", "in": "header", "required": False, "description": description, "schema": {"type": "string"}}
    if endpoint.takes_key:
        description = "Sent again with the same key within a day, the request is answered as it was the first time"
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": description,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }


def _with_commas(schema: dict[str, Any]) -> dict[str, Any]:
    return {"style": "form", "explode": False} if schema.get("type") == "array" else {}


def _responses(endpoint: Endpoint, definitions: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": endpoint.summary}
    if endpoint.media_type != "application/json":
        answer["content"] = {endpoint.media_type: {"schema": {"type": "string"}}}
    elif endpoint.answer is not None:
        answer["content"] = {endpoint.media_type: {"schema": typed_json.schema(endpoint.answer, definitions)}}
    refusal = typed_json.schema(ProblemContent, definitions)
    responses = {str(endpoint.status): answer}
    for status in sorted({kind.status for kind in _kinds(endpoint)}):
        title = next(kind.title for kind in ProblemKind if kind.status == status)
        responses[str(status)] = {"description": title, "content": {problem.MEDIA_TYPE: {"schema": refusal}}}
    return responses


def _kinds(endpoint: Endpoint) -> Iterator[ProblemKind]:
    yield from (
        ProblemKind.UNAUTHENTICATED,
        ProblemKind.FORBIDDEN,
        ProblemKind.METHOD,
        ProblemKind.MALFORMED,
        ProblemKind.CONFLICT,
        ProblemKind.UNAVAILABLE,
        ProblemKind.DEFECT,
    )
    if "{" in endpoint.path:
        yield ProblemKind.NOT_FOUND
    if endpoint.body is not None:
        yield from (ProblemKind.TOO_LARGE, ProblemKind.MEDIA)
    if endpoint.names_revision:
        yield from (ProblemKind.STALE, ProblemKind.REVISION_WANTED)

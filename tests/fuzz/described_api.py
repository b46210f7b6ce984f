"""The API as the server describes it, for schemathesis. It takes a second to import: import it where requests are made up."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode

from tests.console.server.served import Served

CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
"""Requests that the description allows, and others."""


def described_api(served: Served) -> Any:
    with served.client() as client:
        return schemathesis.openapi.from_dict(client.get("/openapi.json").json())

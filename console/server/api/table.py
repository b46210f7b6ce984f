"""All endpoints of the API, sorted as in its description."""

from __future__ import annotations

from pgsluice.console.server.api import (
    alert_api,
    check_api,
    document_api,
    group_api,
    letter_api,
    message_api,
    pipeline_api,
    removal_api,
    run_api,
    server_api,
    subscription_api,
    table_api,
    unit_api,
    worker_api,
)
from pgsluice.console.server.endpoint_table import Endpoint


def all_endpoints(version: str) -> tuple[Endpoint, ...]:
    """The description is made of the others, so it comes last."""
    rows = (
        *server_api.ENDPOINTS,
        *group_api.ENDPOINTS,
        *unit_api.ENDPOINTS,
        *worker_api.ENDPOINTS,
        *table_api.ENDPOINTS,
        *letter_api.ENDPOINTS,
        *message_api.ENDPOINTS,
        *document_api.ENDPOINTS,
        *check_api.ENDPOINTS,
        *alert_api.ENDPOINTS,
        *subscription_api.ENDPOINTS,
        *pipeline_api.ENDPOINTS,
        *run_api.ENDPOINTS,
        *removal_api.ENDPOINTS,
    )
    return (*rows, server_api.description_endpoint(rows, version))

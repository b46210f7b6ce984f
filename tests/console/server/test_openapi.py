"""The API's description, held against the server: requests that it allows and that it does not, made up by schemathesis."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pgsluice.console.server.api.table import all_endpoints
from pgsluice.console.server.endpoint_table import PREFIX
from tests.console.server.served import Served
from tests.misses import no_misses
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket

EXAMPLES = settings().max_examples // 5
"""Of each operation: as many as a server answers in a moment, and a fifth of what make test-long makes up for others."""
OPERATIONS = [f"{endpoint.verb} {endpoint.path}" for endpoint in all_endpoints("") if endpoint.media_type == "application/json"]


@pytest.fixture(scope="module")
def described(served: Served, nats_server: NatsServer) -> Any:
    """With a group, so that not every path leads to nothing."""
    from tests.fuzz.described_api import described_api  # see there

    ensure_bucket(nats_server.settings(), "described")
    return described_api(served)


@pytest.mark.hypothesis
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_is_as_described(described: Any, served: Served, operation: str) -> None:
    from tests.fuzz.described_api import CHECKS

    verb, path = operation.split(" ")

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=described[PREFIX + path][verb].as_strategy())
    def answers_as_described(case: Any) -> None:
        case.call_and_validate(base_url=served.address, headers=headers, checks=CHECKS)

    headers = {"Authorization": f"Bearer {served.admin_token}"}
    answers_as_described()


def test_every_operation_has_a_name_a_summary_and_its_problems(served: Served) -> None:
    with served.client() as client:
        content = client.get("/openapi.json").json()
    operations = [(f"{verb} {path}", operation) for path, verbs in content["paths"].items() for verb, operation in verbs.items()]
    times = Counter(operation["operationId"] for _, operation in operations)
    no_misses((name for name, count in times.items() if count > 1), "two endpoints have this name")
    no_misses(
        (place for place, operation in operations if not operation["summary"]), "give its row in console/server/api a summary"
    )
    silent = (place for place, operation in operations if not {"401", "403", "422"} <= operation["responses"].keys())
    no_misses(silent, "the endpoint does not say how it refuses")


def test_references_lead_somewhere(served: Served) -> None:
    with served.client() as client:
        text = client.get("/openapi.json").text
    defined = json.loads(text)["components"]["schemas"]
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    no_misses(named - defined.keys(), "a schema that is named and not described")

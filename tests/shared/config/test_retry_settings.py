"""The option ``retry``: pauses by kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgsluice.shared.config import make
from pgsluice.shared.config.retry_settings import format_policy, retry_policy
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.retrying import DEFAULT_POLICY, Pauses
from tests.configuration import load

EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"


@pytest.mark.parametrize("settings", [ReplicatorSettings, WorkerSettings])
def test_what_is_not_given_stays_as_it_was(settings: type[ReplicatorSettings | WorkerSettings], tmp_path: Path) -> None:
    content = "retry:\n  target: 1s..1m\n  copied-table: 1s..2s\n"
    policy = make(settings, load(tmp_path, content, settings)).retry
    assert (policy.target, policy.copied_table) == (Pauses(1.0, 60.0), Pauses(1.0, 2.0))
    assert policy.source == DEFAULT_POLICY.source
    assert make(settings, load(tmp_path, "", settings)).retry == DEFAULT_POLICY


def test_a_receiver_that_said_how_long_to_wait_is_never_asked_earlier() -> None:
    policy = retry_policy({"webhook": "2s..4s"})
    assert all(policy.webhook.varied(10.0) >= 10.0 for _ in range(100))


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ({"targets": "1s..2s"}, "retry has no kind 'targets': there are source, nats, "),
        ({"target": "1s"}, "retry of target: '1s' is not a shortest and a longest pause: write it like target=1s..30s"),
        ({"target": "1..30"}, "is not a shortest and a longest pause"),
        ({"target": "0s..30s"}, "is not a pause above 0 and one that is no shorter"),
        ({"target": "30s..1s"}, "is not a pause above 0 and one that is no shorter"),
    ],
)
def test_what_is_no_policy_is_refused_with_what_would_be_one(pairs: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        retry_policy(pairs)
    assert sentence in str(raised.value)
    content = "retry:\n" + "".join(f"  {kind}: {text}\n" for kind, text in pairs.items())
    with pytest.raises(UsageError, match="line"):
        load(tmp_path, content, WorkerSettings)


def test_the_example_shows_the_defaults() -> None:
    shown = re.search(r"^# retry:.*\n((?:#   \S+: .*\n)+)", EXAMPLE.read_text(), re.MULTILINE)
    assert shown is not None
    lines = [line[1:].partition("#")[0].strip().split(": ") for line in shown[1].splitlines()]
    assert dict(lines) == format_policy(DEFAULT_POLICY)

"""What errors tell beside their sentences."""

import ast
import pickle
from pathlib import Path

from pgsluice.shared.errors import Cause, LockTimeoutError, SnapshotGoneError, TransientError

ROOT = Path(__file__).parents[2]
WITHOUT_CAUSE = {
    "shared/alerts/delivery.py": 2,
    "shared/metrics/otlp_push.py": 1,
    "shared/process/defect.py": 1,
    "replicator/snapshot/copy_task.py": 1,
    "replicator/snapshot/schedule.py": 1,
    "worker/between_batches.py": 1,
    "worker/stopping.py": 1,
    "worker/batches/task.py": 1,
}
"""Where a failure is about nothing that the set of causes knows: defects, and parts of ours that ended."""


def test_every_passing_failure_says_what_has_to_become_better() -> None:
    found: dict[str, int] = {}
    for folder in ("shared", "replicator", "worker"):
        for path in (ROOT / folder).rglob("*.py"):
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            bare = [
                call
                for call in calls
                if isinstance(call.func, ast.Name) and call.func.id == "TransientError"
                if len(call.args) < 3 and not any(keyword.arg == "cause" for keyword in call.keywords)
            ]
            if bare:
                found[str(path.relative_to(ROOT))] = len(bare)
    assert found == WITHOUT_CAUSE


def test_a_cause_survives_the_way_from_a_task_to_the_driver() -> None:
    error = pickle.loads(pickle.dumps(TransientError("no room", "make room", Cause.DISK_FULL)))
    assert (error.fact, error.remedy, error.cause) == ("no room", "make room", Cause.DISK_FULL)


def test_a_class_of_failures_has_a_cause_of_its_own_unless_another_is_given() -> None:
    assert LockTimeoutError("held").cause is Cause.LOCK
    assert SnapshotGoneError("gone").cause is Cause.SOURCE
    assert SnapshotGoneError("gone", cause=Cause.LOCK).cause is Cause.LOCK

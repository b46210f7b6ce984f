"""What errors tell beside their sentences."""

import pickle

from pgsluice.shared.errors import Cause, LockTimeoutError, SnapshotGoneError, TransientError
from tests.misses import no_misses
from tests.source_code import calls, relative, sources

NO_CAUSE = "# no cause: "
"""Begins a comment above a failure that is about nothing which the set of causes knows, and says why."""


def test_every_passing_failure_says_what_has_to_become_better() -> None:
    """To metrics, which count waits by their causes. Commands have none."""
    without, needless = [], []
    for path in sources("shared", "replicator", "worker"):
        lines = path.read_text().splitlines()
        excused = {number for number, line in enumerate(lines, 2) if line.strip().startswith(NO_CAUSE)}
        bare = {
            call.lineno
            for call in calls(path, "TransientError")
            if len(call.args) < 3 and not any(keyword.arg == "cause" for keyword in call.keywords)
        }
        without += [f"{relative(path)}:{number}" for number in bare - excused]
        needless += [f"{relative(path)}:{number - 1}" for number in excused - bare]
    no_misses(without, f"a TransientError without a cause: give it one, or say above it '{NO_CAUSE}reason'")
    no_misses(needless, f"no TransientError without a cause is below '{NO_CAUSE}': take it out")


def test_a_cause_survives_the_way_from_a_task_to_the_driver() -> None:
    error = pickle.loads(pickle.dumps(TransientError("no room", "make room", Cause.DISK_FULL)))
    assert (error.fact, error.remedy, error.cause) == ("no room", "make room", Cause.DISK_FULL)


def test_a_class_of_failures_has_a_cause_of_its_own_unless_another_is_given() -> None:
    assert LockTimeoutError("held").cause is Cause.LOCK
    assert SnapshotGoneError("gone").cause is Cause.SOURCE
    assert SnapshotGoneError("gone", cause=Cause.LOCK).cause is Cause.LOCK

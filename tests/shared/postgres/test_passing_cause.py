"""What a passing failure of a server is about."""

import pytest

from pgsluice.shared.errors import Cause
from pgsluice.shared.postgres.passing_cause import passing_cause


@pytest.mark.parametrize(
    ("sqlstate", "cause"),
    [
        (None, Cause.TARGET),
        ("", Cause.TARGET),
        ("08006", Cause.TARGET),
        ("57P01", Cause.TARGET),
        ("53300", Cause.TARGET),
        ("25006", Cause.TARGET),
        ("40P01", Cause.LOCK),
        ("40001", Cause.LOCK),
        ("55P03", Cause.LOCK),
        ("55006", Cause.LOCK),
        ("53100", Cause.DISK_FULL),
    ],
)
def test_a_code_says_whether_a_lock_or_a_disk_is_waited_for_and_otherwise_the_server(sqlstate: str | None, cause: Cause) -> None:
    assert passing_cause(sqlstate, Cause.TARGET) is cause

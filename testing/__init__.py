"""The contracts of sinks and of rules as tests, for their authors: see docs/how-to/own-sink.md and own-rule.md.

from pgsluice.testing import Promise, SinkContract

    class TestOwnSink(SinkContract):
        promises = frozenset({Promise.EXACTLY_ONCE, Promise.COPIED_ROWS})

        @pytest.fixture
        def destination(self, tmp_path): ...

What is documented here is public, as ``pgsluice`` itself is:

    SinkContract                the tests; a class that inherits it lists its sink's promises
    Promise                     what a sink may promise besides what every sink promises
    Destination, RefusingDestination
                                what the fixture ``destination`` returns
    TransformationContract      the tests of a rule of one's own
    worker_settings             the settings that a worker gives a sink
    EVENTS, KEYED_EVENTS, ACCOUNTS
                                the tables of the contract
    table, insert, update, delete, truncate, message, message_of, transaction, copied, restart
                                make changes for your own tests
    apply, apply_copied, write, write_copied
                                take batches of such changes through a sink as tasks and driver do
    followed_accounts, counting_events
                                the accounts and the events that remain after a destination's JSON lines
"""

try:
    import pytest
except ModuleNotFoundError as missing:
    if missing.name != "pytest":
        raise
    raise ModuleNotFoundError("pgsluice.testing needs pytest: pip install pytest", name="pytest") from None

for _module in ("changes_contract", "copy_contract", "rejecting_contract", "rule_contract", "two_lane_contract", "batch"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")

from pgsluice.testing.batch import apply, apply_copied, write, write_copied  # noqa: E402  after their asserts are told
from pgsluice.testing.changes_builder import (  # noqa: E402
    copied,
    delete,
    insert,
    message,
    message_of,
    restart,
    table,
    transaction,
    truncate,
    update,
)
from pgsluice.testing.destination import Destination, RefusingDestination  # noqa: E402
from pgsluice.testing.promises import Promise  # noqa: E402
from pgsluice.testing.rule_contract import TransformationContract  # noqa: E402
from pgsluice.testing.sink_contract import SinkContract  # noqa: E402
from pgsluice.testing.sink_settings import worker_settings  # noqa: E402
from pgsluice.testing.tried_batches import ACCOUNTS, EVENTS, KEYED_EVENTS, counting_events, followed_accounts  # noqa: E402

__all__ = [
    "ACCOUNTS",
    "EVENTS",
    "KEYED_EVENTS",
    "Destination",
    "Promise",
    "RefusingDestination",
    "SinkContract",
    "TransformationContract",
    "apply",
    "apply_copied",
    "copied",
    "counting_events",
    "delete",
    "followed_accounts",
    "insert",
    "message",
    "message_of",
    "restart",
    "table",
    "transaction",
    "truncate",
    "update",
    "worker_settings",
    "write",
    "write_copied",
]

"""The contract of a sink: the tests of all promises, for one class.

Each promise has its tests in a separate module; tests of other promises are not part of its class.
"""

from __future__ import annotations

from typing import Any

from pgsluice.testing.changes_contract import ChangesContract
from pgsluice.testing.copy_contract import CopyContract
from pgsluice.testing.promises import asked
from pgsluice.testing.rejecting_contract import RejectingContract
from pgsluice.testing.two_lane_contract import TwoLaneContract


class SinkContract(ChangesContract, CopyContract, TwoLaneContract, RejectingContract):
    """Needs a fixture ``destination``, which returns a ``Destination``. A subclass lists what it ``promises``."""

    def __init_subclass__(cls, **parameters: Any) -> None:
        super().__init_subclass__(**parameters)
        for name in dir(SinkContract):
            test = getattr(SinkContract, name)
            if not asked(test) <= cls.promises:
                setattr(cls, name, None)
            elif name.startswith("test_") and getattr(cls, name) is None and name not in cls.__dict__:
                setattr(cls, name, test)  # a class above promises less

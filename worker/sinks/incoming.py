"""The tables and rows that will come to a sink, as far as known before: for the checks of a sink (``SinkKind.findings``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.preflight.database import DatabaseIdentity, DatabaseLocale, UserType
from pgsluice.shared.wire.table import Table


@dataclass(frozen=True, slots=True)
class Incoming:
    """``tables`` are the ones that rules and routes let through, as they arrive; None if unknown. ``identity`` is the
    source's. ``is_routed``: routes give tables other names.

    ``is_from_catalog``: ``tables`` are from the source itself; else from NATS, where the name of a type may be
    anything, so it must not be put into a statement before a server has parsed it as a type.
    """

    tables: Sequence[Table] | None = None
    types: Sequence[UserType] = ()
    locale: DatabaseLocale | None = None
    identity: DatabaseIdentity | None = None
    is_routed: bool = False
    is_from_catalog: bool = False


NOTHING_KNOWN = Incoming()

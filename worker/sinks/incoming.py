"""What is going to come to a sink, as far as it is known before: for the checks of a sink (``SinkKind.findings``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.preflight.database import DatabaseIdentity, DatabaseLocale, UserType
from pgsluice.shared.wire.table import Table


@dataclass(frozen=True, slots=True)
class Incoming:
    """``tables`` are those that rules and routes let through, as they arrive; None when nobody could say. ``identity`` is the
    source's. ``is_routed``: routes give tables other names.

    ``is_from_catalog``: the source itself told of ``tables``; else NATS did, and what is called a type there may be anything, so
    it belongs into no statement before a server has read it as a type.
    """

    tables: Sequence[Table] | None = None
    types: Sequence[UserType] = ()
    locale: DatabaseLocale | None = None
    identity: DatabaseIdentity | None = None
    is_routed: bool = False
    is_from_catalog: bool = False


NOTHING_KNOWN = Incoming()

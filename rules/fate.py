"""What filters make of a change: it goes on, it is dropped, or it goes on as another operation.

    operation   the old row passes   the new row passes   fate
    INSERT                           yes                  KEEP
    INSERT                           no                   DROP
    DELETE      yes, or unknown                           KEEP
    DELETE      no                                        DROP
    UPDATE      yes, or unknown      yes                  KEEP
    UPDATE      no                   yes                  AS_INSERT   the row enters
    UPDATE      yes, or unknown      no                   AS_DELETE   the row leaves, or may have left
    UPDATE      no                   no                   DROP
    UPDATE      unknown              unknown              KEEP
    otherwise                                             UNDECIDED

A delete of a row that is not there does no harm, so where the old row is unknown a DELETE is sent to be safe. An UPDATE whose
new row passes is right to apply whether the row was there or not, if all of its values were sent. An update that leaves both rows
unknown did not touch the value that the filter asks for: a row that was there before stays, one that was not is not there now.
(A filter that asks for several values may be wrong there, about those that did change: it needs REPLICA IDENTITY FULL.)
"""

from __future__ import annotations

import enum

from pgsluice.rules.truth import TRUE, UNKNOWN
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE


class Fate(enum.IntEnum):
    DROP = 0
    KEEP = 1
    AS_INSERT = 2
    AS_DELETE = 3
    UNDECIDED = 4


class _Passes(enum.IntEnum):
    NO = 0
    MAYBE = 1
    YES = 2


def _passes(truths: int) -> _Passes:
    """Only TRUE lets a row pass."""
    if truths == TRUE:
        return _Passes.YES
    return _Passes.MAYBE if truths & TRUE else _Passes.NO


def _fate(operation: int, old: _Passes, new: _Passes) -> Fate:
    if operation == DELETE:
        return Fate.DROP if old is _Passes.NO else Fate.KEEP
    if operation == INSERT:
        return (Fate.DROP, Fate.UNDECIDED, Fate.KEEP)[new]
    if new is _Passes.YES:
        return Fate.AS_INSERT if old is _Passes.NO else Fate.KEEP
    if new is _Passes.NO:
        return Fate.DROP if old is _Passes.NO else Fate.AS_DELETE
    return Fate.KEEP if old is _Passes.MAYBE else Fate.UNDECIDED


_PLACES = len(_Passes)
_OPERATIONS = (INSERT, UPDATE, DELETE)
_FATES = bytes(_fate(operation, old, new) for operation in _OPERATIONS for old in _Passes for new in _Passes).ljust(256, b"\0")
_OF_OPERATION = bytes(_OPERATIONS.index(code) * _PLACES**2 if code in _OPERATIONS else 0 for code in range(256))
_OF_OLD = bytes(_passes(truths) * _PLACES for truths in range(UNKNOWN + 1)).ljust(256, b"\0")
_OF_NEW = bytes(_passes(truths) for truths in range(UNKNOWN + 1)).ljust(256, b"\0")


def fates(operations: bytes | bytearray, old: bytes, new: bytes) -> bytes:
    """A Fate for each row, of its operation and of the truth (``rules.truth``) of all filters for its old and its new row. An
    INSERT has no old row and a DELETE no new one: their truth does not count."""
    places = operations.translate(_OF_OPERATION), old.translate(_OF_OLD), new.translate(_OF_NEW)
    total = sum(int.from_bytes(column, "little") for column in places)  # at most 26 in each byte
    return total.to_bytes(len(operations), "little").translate(_FATES)

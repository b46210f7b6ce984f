"""The transform ``type: module:Class``: a function of one text that a user wrote.

    class Prefix:
        def __init__(self, options: Mapping[str, str]) -> None: ...

def apply(self, text: str) -> str: ...

The class is made of the rule's other parameters, as ``shared.own_class`` reads them, and pickled into tasks. ``apply``
is called for each value of the column, old rows' too, in any process: the same text has to become the same text. Where
it raises or returns no text, the row is a dead letter. ``check_column(column)``, if it exists, raises ValueError with
the end of a sentence for a column that the rule cannot take; without it the rule takes text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgsluice.rules.document import YamlMapping
from pgsluice.rules.orderings import is_text
from pgsluice.rules.rule import Transformed
from pgsluice.shared.errors import UsageError
from pgsluice.shared.own_class import find_class, made_of
from pgsluice.shared.wire.table import Column

_NOT_ITS_OWN = ("type", "keeps_unique", "allow_empty_deletes")
_HOW_TO_GIVE = "write it among the rule's parameters"


@dataclass(frozen=True, slots=True)
class OwnTransformation:
    """``name`` is the class's, ``rule`` what it made."""

    name: str
    rule: Any

    def check_column(self, column: Column) -> None:
        own = getattr(self.rule, "check_column", None)
        if own is not None:
            own(column)
        elif not is_text(column):
            raise ValueError(f"is {column.type_name}, and {self.name} takes text only")

    def apply(self, values: Sequence[bytes]) -> Transformed:
        made: list[bytes] = []
        failures: dict[int, str] = {}
        for place, value in enumerate(values):
            try:
                made.append(_encoded(self.rule.apply(value.decode())))
            except _NoTextError as error:
                failures[place] = f"{self.name} returned {error}"
                made.append(b"")
            except Exception as error:  # noqa: BLE001  whatever a rule of somebody else raises, its text may quote the value
                failures[place] = f"{self.name} raised {type(error).__name__}"
                made.append(b"")
        return Transformed(made, failures)


class _NoTextError(Exception):
    """Describes what a rule returned, without a value."""


def _encoded(returned: object) -> bytes:
    if not isinstance(returned, str):
        raise _NoTextError(f"{type(returned).__name__}, and no str")
    if "\0" in returned:
        raise _NoTextError("a text with a NUL, which PostgreSQL has not")
    try:
        return returned.encode()
    except UnicodeEncodeError:
        raise _NoTextError("a text that UTF-8 cannot hold") from None


def own_transformation(name: str, parameters: YamlMapping) -> OwnTransformation | None:
    """Returns None when it cannot be made, which is noted then."""
    given = {key: parameters.text(key) or "" for key in parameters.keys() if key not in _NOT_ITS_OWN}  # noqa: SIM118  no dict
    try:
        rule = made_of("rule", name, find_class("rule", name), given, how=_HOW_TO_GIVE)
    except UsageError as error:
        parameters.problem(str(error), "type")
        return None
    if not callable(getattr(rule, "apply", None)):
        parameters.problem(f"rule {name} lacks apply (see docs/how-to/own-rule.md)", "type")
        return None
    return OwnTransformation(name, rule)

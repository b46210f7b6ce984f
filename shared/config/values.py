"""The values of one command after merging, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgsluice.shared.config.kinds import Value


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that was given and is not a mistake, but has no effect or another name: its name as it was given, where, and why.
    ``message`` is the log line's."""

    name: str
    place: str
    reason: str
    message: str = "a setting has no effect"


@dataclass(frozen=True, slots=True)
class Values:
    """Values by option name. An option that was not given and has no default is absent. Never shown: secrets are among them.

    ``places`` says where each came from, in words for people.
    """

    values: Mapping[str, Value] = field(repr=False)
    places: Mapping[str, str]

    def given(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str:
        """Empty when absent. A number comes as its digits, because an option may take words beside numbers."""
        return str(self.values.get(name, ""))

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def seconds(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, float)
        return value

    def switch(self, name: str) -> bool:
        """False when absent."""
        return self.values.get(name) is True

    def names(self, name: str) -> tuple[str, ...]:
        """Empty when absent."""
        value = self.values.get(name, ())
        assert isinstance(value, tuple)
        return value

    def pairs(self, name: str) -> dict[str, str]:
        """Empty when absent."""
        value = self.values.get(name, {})
        assert isinstance(value, dict)
        return value

"""A pipeline's declaration of its steps, and the code that they may call: pure, nothing is imported.

A pipeline names functions, it never holds code. The administrator lists the modules that may be named: every user who
may store documents can write a pipeline. It can contain SQL, which ``sql_rules`` limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from pgsluice.shared.errors import UsageError

_PLACE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PythonStep:
    """``function(batch, settings)`` of a module, which returns the batch for the next step."""

    module: str
    function: str
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}"

    @classmethod
    def parse(cls, place: str, settings: Mapping[str, object]) -> PythonStep:
        """Raises ValueError with the end of a sentence that begins with ``place``."""
        match = _PLACE.fullmatch(place)
        if match is None:
            raise ValueError("is not a function (write 'module:function', like 'marts.ratings:clean')")
        return cls(match[1], match[2], settings)

    @property
    def said(self) -> list[object]:
        return [self.name, dict(self.settings)]

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.module,)

    @property
    def statement(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class SqlStep:
    """A statement of Spark SQL over ``rows``."""

    text: str = field(repr=False)

    @property
    def name(self) -> str:
        return "sql"

    @property
    def said(self) -> list[object]:
        """Everything whose change makes it another step."""
        return [self.name, self.text]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose code it calls."""
        return ()

    @property
    def statement(self) -> str:
        """The step's SQL, "" for a function."""
        return self.text


Step = PythonStep | SqlStep


def has_sql(steps: Sequence[Step]) -> bool:
    return any(step.statement for step in steps)


def has_python(steps: Sequence[Step]) -> bool:
    return any(step.modules for step in steps)


def is_allowed(module: str, patterns: Sequence[str]) -> bool:
    """Returns whether a pattern matches; ``*`` matches any characters: ``marts.*`` are all modules inside ``marts``."""
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def check_modules(pipeline: str, steps: Sequence[Step], patterns: Sequence[str]) -> None:
    """Raises UsageError when a step names a module that the administrator does not allow."""
    for number, step in enumerate(steps, 1):
        refused = [module for module in step.modules if not is_allowed(module, patterns)]
        if refused:
            raise UsageError(
                f"step {number} of pipeline '{pipeline}' names module '{refused[0]}', which is not allowed here",
                f"the administrator's places file lists modules (now {', '.join(patterns) or 'none'})",
            )

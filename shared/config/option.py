"""An option: the flag ``--nats-url``, the variable ``PGSLUICE_NATS_URL`` and the YAML key ``nats-url`` in one.

All options share one flat key space, so that one file can serve every process of a group. Names and meanings follow
pg_flo's, whose files load unchanged. Defaults are written as a user would write them, and read by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pgsluice.shared.config.kinds import EMPTY, Kind, Value

PREFIX = "PGSLUICE_"
PG_FLO_PREFIX = "PG_FLO_"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    ``required``: the command cannot do without it. ``secret``: its value never appears in an error or in help.
    ``in_file``: a secret that can also come from a file, and what that file holds (``file_option``). ``minimum`` and
    ``maximum`` bound a number, a size in bytes or a duration in seconds. ``choices`` are the only texts (or list items)
    allowed; ``words`` are texts allowed in addition to the kind's values, which make any value a text. ``convert``
    makes of the kind's value the option's; it raises ValueError with the end of a sentence that begins with the value,
    or UsageError. ``content_of`` names the option whose value is the content of this file. ``url`` names the option, a
    database's URL, that can hold this one's value as libpq's ``parameter``. ``no_effect`` is why the option is accepted
    although nothing reads it. ``instead`` is what replaces an option of an earlier name; help lists neither of the two.
    """

    name: str
    kind: Kind
    help: str
    example: str
    default: str = ""
    required: bool = False
    secret: bool = False
    in_file: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    convert: Callable[[Any], Value] | None = None
    content_of: str = ""
    url: str = ""
    parameter: str = ""
    no_effect: str = ""
    instead: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name

    @property
    def variable(self) -> str:
        return PREFIX + self._variable_name

    @property
    def pg_flo_variable(self) -> str:
        """pg_flo's name of the variable, which is read if pgsluice's is not set."""
        return PG_FLO_PREFIX + self._variable_name

    @property
    def _variable_name(self) -> str:
        return self.name.upper().replace("-", "_")

    @property
    def absent(self) -> Value:
        """The value if it was not given and has no default."""
        return "" if self.words else EMPTY[self.kind]

    @property
    def allowed(self) -> str:
        """Bounds and choices as the end of a sentence; "" when the kind is description enough."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.maximum is not None:
            return f"from {self.minimum:.0f} to {self.maximum:.0f}"
        if self.minimum is not None:
            return f"{self.minimum:.0f} or more"
        return ""

    @property
    def file_option(self) -> Option | None:
        """The option that names the secret's file; None for an option that comes from no file."""
        if not self.in_file:
            return None
        help_text = f"File that contains only {self.in_file}"
        name = self.name + "-file"
        return Option(name, Kind.FILE, help_text, f"/run/secrets/{self.name}", content_of=self.name)

    def of_database(self, prefix: str, database: str) -> Option:
        """Returns the option for one of several databases: ``database`` replaces "{database}" in its texts. ``prefix``
        goes before a name without that placeholder."""
        name = self.name.format(database=database)
        renamed = replace(
            self,
            name=prefix + name if name == self.name else name,
            url=self.url.format(database=database),
            parameter=self.name.replace("-", "_") if self.url else "",
        )
        return replace(
            renamed,
            help=self.help.format(database=database),
            in_file=self.in_file.format(database=database),
            example=self.example.replace(self.variable, renamed.variable),
        )

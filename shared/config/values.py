"""The values of one command after merging, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pgsluice.shared.config.kinds import Value
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.postgres_url import url_parts
from pgsluice.shared.errors import UsageError


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
    """Values by option name. An option that was not given and has no default is absent. Never shown: secrets are among
    them.

    ``places`` names the origin of each, in words. ``options`` are the options of the command, ``file`` is the path of
    the configuration file, "" without one, None without a command. The methods prepend ``prefix`` to every name.
    """

    values: Mapping[str, Value] = field(repr=False)
    places: Mapping[str, str]
    options: Mapping[str, Option] = field(repr=False)
    file: str | None
    prefix: str = ""

    def under(self, prefix: str) -> Values:
        """Returns the values for callers that leave ``prefix`` out of the names."""
        return replace(self, prefix=self.prefix + prefix)

    def given(self, name: str) -> bool:
        return self.prefix + name in self.values

    def get(self, name: str, absent: Value) -> Value:
        return self.values.get(self.prefix + name, absent)

    def place(self, name: str) -> str:
        return self.places[self.prefix + name]

    def named(self, name: str) -> str:
        """Returns an option and where its value came from, as the beginning of a sentence."""
        return f"{self.prefix}{name} ({self.place(name)})"

    def text(self, name: str) -> str:
        """Returns the text, empty when absent. A number comes as its digits, because an option may accept words as well
        as numbers."""
        return str(self.get(name, ""))

    def number(self, name: str) -> int:
        value = self.values[self.prefix + name]
        assert isinstance(value, int)
        return value

    def switch(self, name: str) -> bool:
        """Returns the switch; False when absent."""
        return self.get(name, False) is True

    def names(self, name: str) -> tuple[str, ...]:
        """Returns the names; empty when absent."""
        value = self.get(name, ())
        assert isinstance(value, tuple)
        return value

    def pairs(self, name: str) -> dict[str, str]:
        """Returns the pairs; empty when absent."""
        value = self.get(name, {})
        assert isinstance(value, dict)
        return value

    def missing(self, name: str) -> UsageError:
        """Returns the error for an option that must be given."""
        return missing_option(self.options[self.prefix + name], self.file)


def missing_option(option: Option, file: str | None) -> UsageError:
    url = f", or a {option.url} for it" if option.url else ""
    if file is None:
        return UsageError(f"{option.name} is not set", f"give the option '{option.name}'{url}, for example {option.example}")
    where = f"'{option.name}:' in {file}" if file else f"'{option.name}:' in a file given with --config (none was given)"
    example = f"for example {option.flag} {option.example}"
    return UsageError(f"{option.name} is not set", f"give {option.flag}, {option.variable} or {where}{url}; {example}")


class FileSecret(str):
    """A secret as it was in its file when the configuration was read: passwords are rotated while processes run.

    ``path`` is the file that holds it, alone, or as the ``parameter`` of a database's URL.
    """

    path: str
    parameter: str

    def __new__(cls, text: str, path: str, parameter: str = "") -> Self:
        made = super().__new__(cls, text)
        made.path, made.parameter = path, parameter
        return made

    def __reduce__(self) -> tuple[type[FileSecret], tuple[str, str, str]]:
        """Tasks of other processes read it again too, where they have the file."""
        return FileSecret, (str(self), self.path, self.parameter)

    @property
    def current(self) -> str:
        """The content of the file now; the earlier content if it cannot be read, for example while it is being
        replaced."""
        try:
            content = read_secret(self.path)
            return (url_parts(content).get(self.parameter, "") if self.parameter else content) or str(self)
        except (OSError, ValueError):
            return str(self)


def read_secret(path: str) -> str:
    """Returns a file's content without the line end that editors and shells add. Raises OSError and UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return file.read().rstrip("\r\n")


def current_secret(secret: str) -> str:
    """Returns the secret's current value, as far as it can be known."""
    return secret.current if isinstance(secret, FileSecret) else secret

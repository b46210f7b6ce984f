"""A secret that came from a file, and can be read again: people rotate passwords while processes run."""

from __future__ import annotations

from typing import Self

from pgsluice.shared.config.postgres_url import url_parts


class FileSecret(str):
    """The secret as it was when the configuration was read. ``path`` is the file that holds it, alone, or as the ``parameter`` of
    a database's URL."""

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
        """What the file holds now; what it held earlier when it cannot be read, as in the middle of being replaced."""
        try:
            content = read_secret(self.path)
            return (url_parts(content).get(self.parameter, "") if self.parameter else content) or str(self)
        except (OSError, ValueError):
            return str(self)


def read_secret(path: str) -> str:
    """A file's content without the line end that editors and shells add. Raises OSError and UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return file.read().rstrip("\r\n")


def current_secret(secret: str) -> str:
    """The same secret as it is now, as far as that can be known."""
    return secret.current if isinstance(secret, FileSecret) else secret

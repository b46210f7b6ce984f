"""Tokens that the API takes: kept as digests in a file of the server's state directory, changed by commands while it runs.

A token is ``pgs_`` and 256 random bits, so a plain SHA-256 is enough: there is nothing to guess. Several may be valid, so that
one can be replaced without a gap.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from pgsluice.console.server.access.principal import ALL_GROUPS, Principal, Role
from pgsluice.shared.broker.record import MalformedError, TimeText, of_fields
from pgsluice.shared.errors import TerminalError, UsageError
from pgsluice.shared.process.private_file import OURS_ALONE, write_private

_PREFIX = "pgs_"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.@-]{0,63}")
_GROUPS = re.compile(r"[a-z0-9_*-]+")
_ID_LENGTH = 32


@dataclass(frozen=True, slots=True)
class KnownToken:
    """``sha256`` is the hexadecimal digest of the token's text, which is stored nowhere. ``groups`` as a principal has them."""

    name: str
    role: Role
    values: bool
    sha256: str
    created_at: TimeText
    groups: tuple[str, ...] = ALL_GROUPS

    @property
    def id(self) -> str:
        """Identifies this token alone: another one may have had the name before, and was revoked."""
        return self.sha256[:_ID_LENGTH]

    def principal(self, session: str = "") -> Principal:
        return Principal(self.name, self.role, self.id, self.values, self.groups, session)


class Tokens:
    """The tokens in ``path``. Readers see the writes of other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._known: tuple[KnownToken, ...] = ()

    def known(self) -> tuple[KnownToken, ...]:
        """Returns the known tokens; () without a file. Raises TerminalError for a malformed file."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._known = None, ()
            return ()
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if stamp != self._stamp:
            self._known, self._stamp = self._read(), stamp
        return self._known

    def create(self, name: str, role: Role, *, values: bool, groups: tuple[str, ...] = ALL_GROUPS) -> str:
        """Returns the text of a new token, which is shown only this once. Raises UsageError for a name that is taken or
        malformed, and for what cannot be the name of a group."""
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"{name!r} is no name for a token", "use up to 64 characters: a-z, 0-9, '_', '.', '@' and '-'")
        wrong = [pattern for pattern in groups if _GROUPS.fullmatch(pattern) is None]
        if wrong or not groups:
            named = repr(wrong[0]) if wrong else "nothing"
            raise UsageError(
                f"{named} is neither the name of a group nor a pattern", "write names like shop, and patterns like 'shop*'"
            )
        with self._alone():
            if self.named(name) is not None:
                raise UsageError(f"there is a token named '{name}' already", "revoke it first, or give the new one another name")
            text = _PREFIX + secrets.token_urlsafe(32)
            token = KnownToken(name, role, values, _digest(text), datetime.now(UTC).isoformat(), groups)
            self._write((*self.known(), token))
            return text

    def revoke(self, name: str) -> None:
        """Revokes a token, with its sessions and links. Raises UsageError for an unknown name."""
        with self._alone():
            if self.named(name) is None:
                raise UsageError(f"there is no token named '{name}'", "'pgsluice token list' shows those that there are")
            self._write(tuple(token for token in self.known() if token.name != name))

    def principal(self, text: str) -> Principal | None:
        """Returns the token's principal. Compares with all of them, even after a match."""
        digest, found = _digest(text), None
        for token in self.known():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return None if found is None else found.principal()

    def named(self, name: str) -> KnownToken | None:
        return next((token for token in self.known() if token.name == name), None)

    def with_id(self, identifier: str) -> KnownToken | None:
        """Returns the token with that id; sessions and links of it are valid as long as this is not None."""
        return next((token for token in self.known() if token.id == identifier), None)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Commands that change tokens wait for each other: none takes back what another did."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> tuple[KnownToken, ...]:
        try:
            content = orjson.loads(self._path.read_bytes())
            return tuple(of_fields(KnownToken, each) for each in content["tokens"])
        except (orjson.JSONDecodeError, MalformedError, TypeError, KeyError):
            raise TerminalError(
                f"{self._path} is not a file of tokens", "remove it; the next start creates a new token"
            ) from None

    def _write(self, tokens: tuple[KnownToken, ...]) -> None:
        write_private(self._path, orjson.dumps({"tokens": tokens}, option=orjson.OPT_INDENT_2))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

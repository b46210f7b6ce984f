"""Sessions of browsers: a link that works once, and the session that a browser gets for it.

A session is a signed text in a cookie; the key lies in the state directory, so sessions outlive a restart. It names a token by
its id, and ends with it, or when the browser logs out: the digest of its text is kept for as long as it would last.

Links are files of digests in the state directory, so that a command can make one for a server that runs; they end with their
tokens, too.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from pgsluice.shared.process.private_file import write_private

SESSION_S = 12 * 3600.0
LINK_S = 600.0

_KEY_BYTES = 32
_HOST_NAME_LENGTH = 16


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """``id`` is the digest of its text. ``token`` is the id of the token that it began with. ``csrf`` has to come back in a
    header with whatever is written."""

    id: str
    token: str
    csrf: str
    ends_at: float


class Sessions:
    """Sessions are signed with the key in ``path``, which is made when it is first needed. ``ended`` is a folder of
    ended ones."""

    def __init__(self, path: Path, ended: Path) -> None:
        self._path = path
        self._ended = ended
        self._key = b""

    def begin(self, token: str) -> tuple[str, BrowserSession]:
        """Returns the cookie's text, and its session."""
        ends_at = round(time.time() + SESSION_S, 3)
        payload = orjson.dumps({"token": token, "nonce": secrets.token_urlsafe(16), "ends_at": ends_at})
        text = _text(payload)
        return f"{text}.{self._signed(text)}", self._session(text, token, ends_at)

    def find(self, cookie: str) -> BrowserSession | None:
        """Returns None for a session that this server did not sign, or that has ended."""
        text, _, signature = cookie.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._signed(text).encode()):
            return None
        content = orjson.loads(_bytes(text))
        if content["ends_at"] < time.time() or self.has_ended(_digest(text)):
            return None
        return self._session(text, content["token"], content["ends_at"])

    def end(self, session: str) -> None:
        """Ends the session of that id: its cookie lets no browser in any more."""
        _remove_old(self._ended, SESSION_S)
        write_private(self._ended / session, b"")

    def has_ended(self, session: str) -> bool:
        return (self._ended / session).exists()

    def host_name(self) -> str:
        """Returns a name of this machine that other servers on it do not know, so that browsers send them no cookies for it."""
        return f"{hmac.digest(self._load_key(), b'host name', 'sha256').hex()[:_HOST_NAME_LENGTH]}.localhost"

    def _session(self, text: str, token: str, ends_at: float) -> BrowserSession:
        return BrowserSession(_digest(text), token, self._signed(f"csrf {text}"), ends_at)

    def _signed(self, text: str) -> str:
        return _text(hmac.digest(self._load_key(), text.encode(), "sha256"))

    def _load_key(self) -> bytes:
        if not self._key:
            if not self._path.exists():
                write_private(self._path, secrets.token_bytes(_KEY_BYTES))
            self._key = self._path.read_bytes()
        return self._key


class Links:
    """Codes that let a browser in once, as files named by their digests in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, token: str) -> str:
        """Returns a code for the token of that id, good for LINK_S."""
        _remove_old(self._folder, LINK_S)
        code = secrets.token_urlsafe(24)
        write_private(self._folder / _digest(code), token.encode())
        return code

    def take(self, code: str) -> str | None:
        """Returns the token's id. A second request gets None, and so does a late one."""
        path = self._folder / _digest(code)
        try:
            is_good, token = time.time() - path.stat().st_mtime <= LINK_S, path.read_text()
            path.unlink()
        except FileNotFoundError:
            return None
        return token if is_good else None


def _remove_old(folder: Path, kept_s: float) -> None:
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process removes them, too
            if time.time() - path.stat().st_mtime > kept_s:
                path.unlink(missing_ok=True)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

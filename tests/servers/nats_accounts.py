"""An operator, an account with JetStream and a user, as NATS's decentralised authentication has them.

They are signed JSON Web Tokens, and a credentials file with the user's token and seed. Elsewhere ``nsc`` makes them."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys

_UNLIMITED = -1
_ACCOUNT_LIMITS = dict.fromkeys(
    ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams", "consumer"),
    _UNLIMITED,
) | {"wildcards": True}
_USER_LIMITS = dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)


def _key_pair(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _public(key: nkeys.KeyPair) -> str:
    return bytes(key.public_key).decode()


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _token(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, kind: str, claims: dict[str, Any]) -> str:
    """A token of version 2 of NATS's format (nats-io/jwt)."""
    body = {
        "jti": os.urandom(8).hex(),
        "iat": int(time.time()),
        "iss": _public(issuer),
        "name": kind,
        "sub": _public(subject),
        "nats": {"type": kind, "version": 2} | claims,
    }
    signed = ".".join(_encode(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
    return f"{signed}.{_encode(issuer.sign(signed.encode()))}"


class NatsAccounts:
    """``config`` belongs into a server's configuration; ``write_credentials`` makes the file that its user connects with."""

    def __init__(self) -> None:
        operator, system = _key_pair(nkeys.PREFIX_BYTE_OPERATOR), _key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
        account, self._user = _key_pair(nkeys.PREFIX_BYTE_ACCOUNT), _key_pair(nkeys.PREFIX_BYTE_USER)
        tokens = {_public(key): _token(operator, key, "account", {"limits": _ACCOUNT_LIMITS}) for key in (account,)}
        without_storage = {name: limit for name, limit in _ACCOUNT_LIMITS.items() if "storage" not in name}
        tokens[_public(system)] = _token(operator, system, "account", {"limits": without_storage})
        self._user_token = _token(account, self._user, "user", {"pub": {}, "sub": {}} | _USER_LIMITS)
        preload = "\n".join(f"  {name}: {token}" for name, token in tokens.items())
        self.config = (
            f"operator: {_token(operator, operator, 'operator', {})}\nsystem_account: {_public(system)}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        )

    def write_credentials(self, path: Path) -> Path:
        parts = (("NATS USER JWT", self._user_token), ("USER NKEY SEED", bytes(self._user.seed).decode()))
        path.write_text("\n".join(f"-----BEGIN {name}-----\n{text}\n------END {name}------\n" for name, text in parts))
        return path

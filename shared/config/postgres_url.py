"""The URL of a database, taken apart as libpq does (PostgreSQL manual, *Connection URIs*), but strictly.

postgres://user:password@host:port/dbname?sslmode=verify-full&sslrootcert=/etc/root.crt

Every error here is a reason without a single character of the URL: a URL holds a password, and in a malformed one its
place is unknown. Therefore characters that end a part are refused where they were not written as ``%XX``: a ``/`` or
``@`` in a password would make host or database of the rest of it, and these are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

DEFAULT_PORT = "5432"

PARAMETERS = (
    "host",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
)
"""Parameters that a URL may set, each an option, by libpq's names."""

_OF_LIBPQ = {
    "application_name",
    "client_encoding",
    "connect_timeout",
    "gssencmode",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "options",
    "passfile",
    "replication",
    "require_auth",
    "service",
    "sslcrl",
    "sslcrldir",
    "sslnegotiation",
    "sslpassword",
    "target_session_attrs",
    "tcp_user_timeout",
}
"""Parameters that an error may name. Any other one might be a part of a password."""

_URL = re.compile(
    r"postgres(?:ql)?://"
    r"(?:(?P<user>[^\s@/?#:]*)(?::(?P<password>[^\s@/?#]*))?@)?"
    r"(?P<servers>[^\s@/?#]*)"
    r"(?:/(?P<dbname>[^\s@/?#]*))?"
    r"(?:\?(?P<query>[^\s@?#]*))?"
)
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

_FORM = (
    "is not the URL of a database (postgres://user:password@host:port/dbname; in user and password write @ as %40, / as %2F, "
    ": as %3A, ? as %3F, # as %23, % as %25)"
)


def url_parts(text: str) -> dict[str, str]:
    """Returns the parts of the URL, by PARAMETERS, without empty ones. With a host it always has a port. Raises
    ValueError with the end of a sentence that begins with the URL's name."""
    match = _URL.fullmatch(text)
    if match is None or _BAD_ESCAPE.search(text):
        raise ValueError(_FORM)
    said: dict[str, str] = {}
    for name, value in _said(match):
        if name in said:
            raise ValueError(f"says {name} twice")
        said[name] = value
    if "host" in said:
        said.setdefault("port", DEFAULT_PORT)
    return said


def _said(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    for name in ("user", "password", "dbname"):
        if match[name]:
            yield name, _decoded(match[name])
    yield from _servers(match["servers"])
    for pair in filter(None, (match["query"] or "").split("&")):
        name, equals, value = pair.partition("=")
        if pair == "ssl=true":  # as JDBC's URLs have it, and libpq understands it
            name, value = "sslmode", "require"
        if not equals or name not in PARAMETERS:
            raise ValueError(_unknown(name))
        if value:
            yield name, _decoded(value)


def _unknown(name: str) -> str:
    named = f"the parameter {name}" if name in _OF_LIBPQ else "a parameter"
    return (
        f"holds {named} that is not taken here (there are {', '.join(PARAMETERS[5:])}; host and the like may be parameters too)"
    )


def _servers(text: str) -> Iterator[tuple[str, str]]:
    """Several hosts are one text with commas, as libpq has it; they must have one port."""
    found = [_SERVER.fullmatch(server) for server in text.split(",")]
    servers = [(match[1], match[2] or "") for match in found if match is not None]
    if len(servers) < len(found):
        raise ValueError(_FORM)
    if len(servers) > 1 and len({port or DEFAULT_PORT for _, port in servers}) > 1:
        raise ValueError("names hosts with different ports: several hosts have to listen at the same port")
    host, port = ",".join(_decoded(host.strip("[]")) for host, _ in servers), servers[0][1]
    if host:
        yield "host", host
    if port:
        yield "port", port


def _decoded(text: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("holds a %XX that is not UTF-8") from None
    if "\0" in decoded:
        raise ValueError("holds a %00")
    return decoded

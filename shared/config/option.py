"""What an option is, and who reads it. ``shared.config.options`` is the table of all of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from pgsluice.shared.config.kinds import Kind


class Role(enum.Enum):
    """Who reads an option. A command has one or more roles: ``worker postgres`` is WORKER and POSTGRES."""

    REPLICATOR = "replicator"
    STATUS = "status"
    DROP = "drop"
    RULES = "rules"
    DEAD = "dead"
    FORGET = "forget"
    DROP_FROM_NATS = "drop --nats-only"
    DROP_FROM_SOURCE = "drop --source-only"
    WORKER = "worker"
    STDOUT = "worker stdout"
    POSTGRES = "worker postgres"
    FILE = "worker file"
    WEBHOOK = "worker webhook"
    CUSTOM = "worker module:Class"


EVERY = (Role.REPLICATOR, Role.WORKER, Role.STATUS, Role.DROP, Role.DROP_FROM_NATS, Role.DEAD, Role.FORGET)
ALL = (*EVERY, Role.RULES, Role.DROP_FROM_SOURCE)
SOURCE = (Role.REPLICATOR, Role.STATUS, Role.DROP, Role.DROP_FROM_SOURCE, Role.RULES)
CATALOG = (Role.REPLICATOR, Role.RULES)
REPLICATOR = (Role.REPLICATOR,)
WORKER = (Role.WORKER,)
STDOUT = (Role.STDOUT,)
POSTGRES = (Role.POSTGRES,)
FILE = (Role.FILE,)
WEBHOOK = (Role.WEBHOOK,)

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
OPERATIONS = ("insert", "update", "delete", "truncate")
ORIGINS = ("any", "none")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


PREFIX = "PGSLUICE_"
PG_FLO_PREFIX = "PG_FLO_"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    ``required`` names the roles that cannot do without it. ``secret``: its value never appears in an error or in help.
    ``minimum`` and ``maximum`` bound a number, a size in bytes or a duration in seconds. ``choices`` are the only texts (or
    list items) allowed; ``words`` are texts allowed beside what the kind takes. ``content_of`` names the option whose value
    is the content of this file. ``no_effect`` says why the option is accepted although nothing reads it.
    """

    name: str
    kind: Kind
    roles: tuple[Role, ...]
    help: str
    example: str
    default: str = ""
    required: tuple[Role, ...] = ()
    secret: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    content_of: str = ""
    no_effect: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def pg_flo_variable(self) -> str:
        """pg_flo's name of the variable, which is read where ours is not set."""
        return PG_FLO_PREFIX + self.name.upper().replace("-", "_")

    @property
    def allowed(self) -> str:
        """Bounds and choices as the end of a sentence; "" when the kind says it all."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.maximum is not None:
            return f"from {self.minimum:.0f} to {self.maximum:.0f}"
        if self.minimum is not None:
            return f"{self.minimum:.0f} or more"
        return ""


def connection_options(prefix: str, whose: str, roles: tuple[Role, ...], required: tuple[Role, ...]) -> Iterable[Option]:
    """How to reach one database, without TLS."""
    yield Option(prefix + "host", Kind.TEXT, roles, f"Host of the {whose} database", "db.example.com", required=required)
    yield Option(prefix + "port", Kind.NUMBER, roles, f"Port of the {whose} database", "5432", "5432", minimum=1, maximum=65535)
    yield Option(prefix + "dbname", Kind.TEXT, roles, f"Name of the {whose} database", "shop", required=required)
    yield Option(prefix + "user", Kind.TEXT, roles, f"User at the {whose} database", "pgsluice", required=required)
    yield Option(
        prefix + "password",
        Kind.TEXT,
        roles,
        f"Password at the {whose} database. Better not as a flag: every user of the machine can read a command line",
        "${" + f"PGSLUICE_{prefix.upper().replace('-', '_')}PASSWORD" + ":-}",
        secret=True,
    )
    yield Option(
        prefix + "password-file",
        Kind.FILE,
        roles,
        f"File that holds the password at the {whose} database and nothing else",
        f"/run/secrets/{prefix}password",
        content_of=prefix + "password",
    )


def tls_options(prefix: str, whose: str, roles: tuple[Role, ...]) -> Iterable[Option]:
    """libpq's TLS parameters of one database."""
    yield Option(
        prefix + "sslmode",
        Kind.TEXT,
        roles,
        f"TLS to the {whose} database, as libpq's sslmode (libpq's default: prefer)",
        "verify-full",
        choices=SSL_MODES,
    )
    yield Option(
        prefix + "sslrootcert",
        Kind.FILE,
        roles,
        f"Certificates that vouch for the {whose} database, or 'system' for the machine's",
        "/etc/pgsluice/root.crt",
        words=("system",),
    )
    yield Option(prefix + "sslcert", Kind.FILE, roles, f"Our certificate at the {whose} database", "/etc/pgsluice/client.crt")
    yield Option(prefix + "sslkey", Kind.FILE, roles, "Private key of that certificate", "/etc/pgsluice/client.key")

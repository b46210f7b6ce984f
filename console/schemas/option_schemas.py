"""The schemas of the configuration file and of a group's stored configuration: one property for each option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from pgsluice.console.flags import known_options
from pgsluice.console.schemas.values import DURATION, NULL, SCALAR, SWITCH, Schema, by_name, document, list_of
from pgsluice.shared.config.declaration import CONFIG
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option

_VARIABLE: Schema = {"type": "string", "pattern": "\\$\\{"}
"""The variable's value decides what the text is."""
_REFERENCE: Schema = {"type": "string", "pattern": "^((Bearer|Basic) )?\\$\\{[A-Za-z_][A-Za-z0-9_]*(:-)?\\}$"}
_SIZE = "^[0-9]+\\s*([bB]|[kKmMgGtT][iI]?[bB])?$"
_PATTERNS = {
    Kind.LSN: "^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$",
    Kind.URL: "^https?://",
    Kind.ADDRESS: "^(\\[[0-9A-Fa-f:.]+\\]|[^\\s:/\\[\\]]+):[0-9]{1,5}$",
}


def config_schema() -> Schema:
    described = "Options of every command of pgsluice: one file serves the replicator and all workers of a group"
    return document("config", "pgsluice configuration", described, _options(known_options()))


def group_schema() -> Schema:
    """Returns the schema of a stored configuration, whose secrets are references (``console.documents.group_document``)."""
    described = "Configuration of a group as the server stores it: secrets are references to environment variables"
    schema = _options(known_options(), secrets=_REFERENCE) | {"required": ["group"]}
    return document("group", "stored configuration of a pgsluice group", described, schema)


def _options(options: Iterable[Option], secrets: Schema | None = None) -> Schema:
    properties = {option.name: _option(option, secrets) for option in options if option is not CONFIG}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _option(option: Option, secrets: Schema | None) -> Schema:
    default = f" Default: {option.default}." if option.default else ""
    described: Schema = {"description": f"{option.help}.{default}"}
    if option.instead:
        described["deprecated"] = True
    if not option.secret:
        described["examples"] = [option.example]
    value = option_value(option) if secrets is None or not option.secret else _only(secrets, option)
    return {**described, "anyOf": [*value, NULL]}


def _only(secret: Schema, option: Option) -> list[Schema]:
    if option.kind is Kind.PAIRS:
        return [by_name(secret)]
    return [secret, list_of(secret)] if option.kind is Kind.LIST else [secret]


def option_value(option: Option) -> list[Schema]:
    """Returns the schemas of the values that a file may hold for ``option``, as alternatives."""
    others = [_VARIABLE, *([{"enum": list(option.words)}] if option.words else [])]
    match option.kind:
        case Kind.SWITCH:
            return [SWITCH, *others]
        case Kind.NUMBER:
            return [{"type": "integer", **_bounds(option)}, {"type": "string", "pattern": "^[+-]?[0-9]+$"}, *others]
        case Kind.SIZE:
            return [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _SIZE}, *others]
        case Kind.DURATION:
            return [DURATION, *others]
        case Kind.LIST:
            items: Schema = {"anyOf": [{"enum": list(option.choices)}, _VARIABLE]} if option.choices else SCALAR
            return [list_of(items), {"type": "string"}]
        case Kind.SERVERS:
            return [list_of({"type": "string"}), {"type": "string"}]
        case Kind.PAIRS:
            return [by_name({"anyOf": [SCALAR, NULL]}), _VARIABLE]
        case Kind.LSN | Kind.URL | Kind.ADDRESS as kind:
            return [{"type": "string", "pattern": _PATTERNS[kind]}, *others]
        case Kind.FILE | Kind.DATABASE:
            return [{"type": "string"}]
        case Kind.TEXT:
            return [{"enum": list(option.choices)}, *others] if option.choices else [SCALAR]
        case unreachable:
            assert_never(unreachable)


def _bounds(option: Option) -> Schema:
    bounds = {"minimum": option.minimum, "maximum": option.maximum}
    return {name: int(bound) for name, bound in bounds.items() if bound is not None}

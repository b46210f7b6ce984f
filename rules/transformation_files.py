"""Reads the files of rules and routes, and checks them against the existing tables.

The rules file is read by ``rules.rules_file``. The routing file is in pg_flo's format, and more:

    users:                            # a table as ``shared.wire.table`` spells it
      destination_schema: crm         # default: the source's
      destination_table: customers    # default: the source's; or schema and table as crm.customers
      column_mappings:                # columns that are not listed keep their names
        - {source: id, destination: customer_id}
      drop_columns: [password_hash]
      operations: [INSERT, UPDATE]    # default: all
      optional: true                  # the table and the columns need not be there yet
    orders:                           # several destinations
      - destination_schema: sales
      - destination_schema: archive
        operations: [INSERT]

TRUNCATE goes with DELETE, unless it is listed. pg_flo lets nothing pass without ``operations``, which is useless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pgsluice.rules.document import Problems, YamlMapping, open_document
from pgsluice.rules.routing import EVERY_OPERATION, NO_ROUTES, TRUNCATE, Route, Routing
from pgsluice.rules.rule import OPERATIONS
from pgsluice.rules.rules_file import USERS_OWN, load_rules
from pgsluice.rules.ruleset import NO_RULES
from pgsluice.rules.transformation import Transformation
from pgsluice.shared.errors import UsageError
from pgsluice.shared.rows.changes import DELETE
from pgsluice.shared.wire.names import TARGET_SCHEMA
from pgsluice.shared.wire.table import Table, TablePattern

ROUTE_OPERATIONS = OPERATIONS | {"TRUNCATE": TRUNCATE}
_DDL = "DDL"  # in files for pg_flo; changes of table definitions are not replicated
ROUTE_KEYS = (
    "source_table",
    "destination_table",
    "destination_schema",
    "column_mappings",
    "drop_columns",
    "operations",
    "optional",
)
RENAMING_KEYS = ("source", "destination")


def load_routing(path: str, text: str | None = None) -> Routing:
    """Loads the file, or ``text``, which ``path`` only names. Raises UsageError that names every error in it."""
    root, problems = open_document(path, "routing file", text)
    tables = root.keys()
    written = [pair for table in tables for pair in _routes(root, table, problems)]
    _check_destinations(written)
    problems.check()
    return Routing(route for _, route in written)


def _routes(root: YamlMapping, key: str, problems: Problems) -> list[tuple[YamlMapping, Route]]:
    """Returns each route with where it is written."""
    where = f"table '{key}'"
    try:
        source = TablePattern.parse(key)
    except ValueError as error:
        root.problem(f"'{key}' {error}", key)
        return []
    if root.is_list(key):
        mappings = root.mappings(key, f"{where}, route") or []
    else:
        mappings = [mapping] if (mapping := root.mapping(key)) else []
        for mapping in mappings:
            mapping.where = where
    if not mappings and (root.is_list(key) or root.text(key) is None):
        root.problem(f"{where} has no route (write 'destination_table: …' below it, or remove it)", key)
    return [(mapping, _route(mapping, source, problems.path)) for mapping in mappings]


def _route(mapping: YamlMapping, source: TablePattern, path: str) -> Route:
    """Returns the route that ``mapping`` describes, as far as that can be read; what cannot is noted as a problem."""
    mapping.finish(ROUTE_KEYS)
    named = mapping.text("source_table")
    if named not in (None, source.text, source.text.rpartition(".")[2]):
        mapping.problem(f"source_table '{named}' is another table than the route's, '{source.text}'", "source_table")
    schema, table = _destination(mapping)
    if schema == TARGET_SCHEMA:
        mapping.problem(f"schema '{schema}' holds pgsluice's own tables at a target (choose another one)", "destination_schema")
    if table and not source.is_name:
        mapping.problem("destination_table would send several tables to one (give destination_schema alone)", "destination_table")
    renamed = _renamed(mapping)
    dropped = mapping.texts("drop_columns") or []
    for name in sorted(set(dropped) & {column for column, _ in renamed}):
        mapping.problem(f"column '{name}' is both renamed and dropped", "drop_columns")
    return Route(
        source,
        schema,
        table,
        tuple(renamed),
        frozenset(dropped),
        _operations(mapping),
        f"{path}:{mapping.line}: {mapping.where}",
        mapping.switch("optional") is True,
    )


def _destination(mapping: YamlMapping) -> tuple[str, str]:
    """Returns schema and table, "" for the source's."""
    schema = mapping.text("destination_schema") or ""
    text = mapping.text("destination_table")
    if text is None:
        return schema, ""
    try:
        pattern = TablePattern.parse(text)
    except ValueError:
        mapping.problem(f"destination_table '{text}' is not a table (write 'table' or 'schema.table')", "destination_table")
        return "", ""
    if not pattern.is_name:
        mapping.problem(f"destination_table '{text}' is not one table (a * cannot be filled in)", "destination_table")
    if pattern.schema is None:
        return schema, pattern.name.name
    if schema:
        mapping.problem("destination_schema and destination_table both name a schema (give it once)", "destination_schema")
    return pattern.schema.name, pattern.name.name


def _renamed(mapping: YamlMapping) -> list[tuple[str, str]]:
    """Returns pairs of the source's name and the destination's, without unchanged ones."""
    pairs = []
    for each in mapping.mappings("column_mappings", f"{mapping.where}, column_mappings") or []:
        each.finish(RENAMING_KEYS)
        source, destination = each.required_text("source", "id"), each.required_text("destination", "customer_id")
        if source and destination:
            pairs.append((source, destination))
    for name in _repeated(source for source, _ in pairs):
        mapping.problem(f"column '{name}' is renamed twice", "column_mappings")
    for name in _repeated(destination for _, destination in pairs):
        mapping.problem(f"two columns are renamed to '{name}'", "column_mappings")
    return [(source, destination) for source, destination in pairs if source != destination]


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _operations(mapping: YamlMapping) -> frozenset[int]:
    listed = mapping.texts("operations")
    if listed is None:
        return EVERY_OPERATION
    unknown = [text for text in listed if text.upper() not in (*ROUTE_OPERATIONS, _DDL)]
    for text in unknown:
        mapping.problem(f"operation '{text}' is unknown (known: {', '.join(ROUTE_OPERATIONS)})", "operations")
    operations = {ROUTE_OPERATIONS[text.upper()] for text in listed if text.upper() in ROUTE_OPERATIONS}
    if not operations and not unknown:
        mapping.problem("operations lets nothing pass (remove it to let all pass)", "operations")
    return frozenset(operations | ({TRUNCATE} if DELETE in operations else set()))


def _check_destinations(written: Iterable[tuple[YamlMapping, Route]]) -> None:
    """Rows of two tables, or of one table twice, must not meet: keys would collide, and a TRUNCATE of one empty both."""
    taken: dict[tuple[str, str], int] = {}
    for mapping, route in written:
        if not route.source.is_name:
            continue
        table = route.table or route.source.name.name
        schema = route.schema or (route.source.schema.name if route.source.schema else "")
        line = taken.setdefault((schema, table), mapping.line)
        if line != mapping.line:
            destination = f"{schema}.{table}" if schema else table
            mapping.problem(f"'{destination}' is the destination of the route in line {line} already")


def load_transformation(rules_file: str, routing_file: str) -> Transformation:
    """Loads the files at these paths, "" for none. Raises UsageError that names every error in one of them."""
    rules = load_rules(rules_file, makers=USERS_OWN).ruleset() if rules_file else NO_RULES
    return Transformation(rules, load_routing(routing_file) if routing_file else NO_ROUTES)


def read_transformation(rules: str, routing: str) -> Transformation:
    """Like ``load_transformation``, from texts, which are called rules and routing in errors; "" for none."""
    ruleset = load_rules("rules", rules).ruleset() if rules.strip() else NO_RULES
    return Transformation(ruleset, load_routing("routing", routing) if routing.strip() else NO_ROUTES)


def check_tables(transformation: Transformation, tables: Sequence[Table]) -> None:
    """Raises UsageError that names everything that does not fit ``tables``, all the tables there are."""
    problems = transformation.problems(tables)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise UsageError(
            f"rules and routes do not fit the source's tables:{listed}",
            "correct the files; for a table or column that does not exist yet, set 'optional: true'",
        )

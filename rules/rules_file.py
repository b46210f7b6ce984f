"""The rules file: pg_flo's format and more, read strictly (``rules.document``).

    tables:
      users:                              # or shop.users, shop.*, "*", order_*
        - type: transform
          column: email                   # or *email*: every column that matches
          parameters: {type: mask, mask_char: "*", keep_domain: true}     # or regex, or module:Class
          operations: [INSERT, UPDATE, DELETE]
        - type: filter
          column: age
          parameters: {operator: gte, value: 18}
        - type: filter
          any:
            - {column: country, operator: eq, value: DE}
            - not: {column: tags, operator: contains, value: internal}
      shop.accounts:                      # a table with more settings than its rules
        unlisted: "null"                  # or keep, refuse: the treatment of columns that no rule names
        keep: [id, created_at]            # columns, or patterns of them, that leave as they are
        optional: true                    # the table, or a rule's column, need not be there yet
        rules: []

docs/how-to/rules.md describes them.

Some of pg_flo's own files lack ``tables:`` above their tables. pg_flo ignores such a file whole and silently. Here its
rules are in force, and a remark reports the difference: the author wanted them, and a mask that is silently missing is
worse than one that is applied at last. Transforms like ``parameters: {operation: lowercase}``, which neither program
has, are left out of such a file, each with a remark; everything else in it is read as strictly as in any other file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pgsluice.rules.comparison import Comparison
from pgsluice.rules.composition import AllOf, AnyOf, Not
from pgsluice.rules.contains import Contains
from pgsluice.rules.document import YamlMapping, open_document
from pgsluice.rules.mask import Mask
from pgsluice.rules.orderings import OPERATORS
from pgsluice.rules.own_transformation import own_transformation
from pgsluice.rules.regex_replace import MOST_TIME_LIMIT_MS, TIME_LIMIT_MS, RegexReplace, regex_replace
from pgsluice.rules.rule import ALL_OPERATIONS, OPERATIONS, Filter, RowCondition, Rule, Transform, Unlisted, ValueTransformation
from pgsluice.rules.ruleset import RuleSet, TableRules
from pgsluice.shared.own_class import is_class_name
from pgsluice.shared.rows.changes import DELETE
from pgsluice.shared.wire.table import NamePattern, TablePattern

_TYPES = ("transform", "filter")
COMPOSITIONS = ("all", "any", "not")
CONTAINS = "contains"
TABLE_KEYS = ("rules", "unlisted", "keep", "optional")
UNLISTED = {each.name.lower(): each for each in Unlisted}
RULE_KEYS = ("type", "column", "parameters", "operations", "optional", "allow_empty_deletes")
SHARED_PARAMETERS = ("allow_empty_deletes",)
CONDITION_KEYS = ("operator", "value", "ignore_case", "order")
MASK_KEYS = ("type", "mask_char", "keep_first", "keep_last", "keep_domain", "keeps_unique")
REGEX_KEYS = ("type", "pattern", "replace", "time_limit_ms", "keeps_unique")


@dataclass(frozen=True, slots=True)
class RulesFile:
    """A file without problems."""

    path: str
    entries: tuple[TableRules, ...]
    digest: str
    remarks: tuple[str, ...]

    def ruleset(self) -> RuleSet:
        return RuleSet(self.path, self.digest, self.entries, self.remarks)


class Makers(NamedTuple):
    """Constructors for a file's patterns and classes. ``regex`` makes a replacement of a pattern, a replacement text
    and a time limit, and raises ValueError with a sentence. ``own`` makes a transformation of a user's class, which can
    do anything: None if untrusted users write the rules."""

    regex: Callable[[str, str, int], RegexReplace] = regex_replace
    own: Callable[[str, YamlMapping], ValueTransformation | None] | None = None


STRANGERS = Makers()
USERS_OWN = Makers(own=own_transformation)
"""Constructors for the files of the user who starts the process."""


def load_rules(path: str, text: str | None = None, makers: Makers = STRANGERS) -> RulesFile:
    """Loads the file, or ``text``, which ``path`` only names. Raises UsageError when the file cannot be read, or with
    all of its errors: "file:line: table 't', rule 2: …"."""
    root, problems = open_document(path, "rules file", text)
    remarks: list[str] = []
    if _is_rootless(root):
        tables: YamlMapping | None = root
        remarks.append(_rootless_remark(path, root))
    else:
        tables = _tables(root)
    names = tables.keys() if tables is not None else []
    entries = [_entry(path, tables, name, remarks, makers) for name in names] if tables is not None else []
    problems.check()
    return RulesFile(path, tuple(entries), (tables or root).digest(), tuple(remarks))


def _is_rootless(root: YamlMapping) -> bool:
    """Returns whether each key holds a list of rules. ``rules`` is the root of a file of another shape, and no table's
    name.
    """
    keys = root.keys()
    return bool(keys) and not {"tables", "rules"} & set(keys) and all(map(root.is_list_of_mappings, keys))


def _rootless_remark(path: str, root: YamlMapping) -> str:
    return (
        f"{path}:{root.line}: there is no 'tables:' above the tables. pg_flo ignores such a file; here its rules are in force"
        " (write 'tables:' above them, or do not give the file)"
    )


def _remark_if_left_out(path: str, rule: YamlMapping) -> str | None:
    """Returns a remark when the rule, of a file without a root, is one that neither program has; None for any other."""
    parameters = rule.mapping("parameters")
    if parameters is None or rule.text("type") != "transform" or "type" in parameters or "operation" not in parameters:
        return None
    return (
        f"{path}:{rule.line}: {rule.where}: is left out: 'operation: {parameters.text('operation')}' does nothing in pg_flo,"
        " and nothing here"
    )


def _tables(root: YamlMapping) -> YamlMapping | None:
    root.finish(("tables",))
    if "tables" not in root:
        root.problem("tables is missing (write 'tables:' and below it each table with its list of rules)")
    return root.mapping("tables")


def _entry(path: str, tables: YamlMapping, name: str, remarks: list[str], makers: Makers) -> TableRules:
    where = f"table '{name}'"
    try:
        pattern = TablePattern.parse(name)
    except ValueError as error:
        tables.problem(f"{where} {error}", name)
        pattern = TablePattern.parse("*")
    settings = tables.mapping(name) if tables.is_mapping(name) else None
    if settings is None:
        listed = tables.mappings(name, f"{where}, rule")
    else:
        settings.where = where
        settings.finish(TABLE_KEYS)
        listed = settings.mappings("rules", f"{where}, rule")
    rules = []
    for rule in listed or ():
        left_out = _remark_if_left_out(path, rule) if remarks else None
        if left_out:
            remarks.append(left_out)
        else:
            rules.append(_rule(path, rule, makers))
    place, made = f"{path}:{tables.line_of(name)}: {where}", tuple(rule for rule in rules if rule is not None)
    if settings is None:
        return TableRules(place, pattern, made)
    unlisted = UNLISTED[settings.word("unlisted", UNLISTED) or "keep"]
    kept = tuple(map(NamePattern, settings.texts("keep") or ()))
    return TableRules(place, pattern, made, unlisted, kept, settings.switch("optional") is True)


def _rule(path: str, rule: YamlMapping, makers: Makers) -> Rule | None:
    """Returns None when the rule has problems, which are noted then."""
    place = f"{path}:{rule.line}: {rule.where}"
    kind = rule.choice("type", _TYPES)
    operations = _operations(rule)
    parameters = rule.mapping("parameters")
    if kind == "filter":
        return _filter(place, rule, parameters, operations)
    if kind == "transform":
        rule.finish(RULE_KEYS)
        return _transform(place, rule, parameters, operations, makers)
    return None


def _operations(rule: YamlMapping) -> frozenset[int]:
    names = rule.texts("operations")
    if names is None:
        return ALL_OPERATIONS
    unknown = [name for name in names if name.upper() not in OPERATIONS]
    if unknown or not names:
        listed = ", ".join(f"'{name}'" for name in unknown) or "none"
        rule.problem(
            f"operations are INSERT, UPDATE and DELETE (all of them when the key is left out), not {listed}", "operations"
        )
    return frozenset(OPERATIONS[name.upper()] for name in names if name.upper() in OPERATIONS)


def _empty_deletes(rule: YamlMapping, parameters: YamlMapping | None) -> bool | None:
    """Reads ``allow_empty_deletes``, which can be in the rule or among its parameters."""
    own = rule.switch("allow_empty_deletes")
    among = parameters.switch("allow_empty_deletes") if parameters is not None else None
    if own is not None and among is not None and own is not among:
        rule.problem("allow_empty_deletes has one value here and another in the parameters", "allow_empty_deletes")
    return own if own is not None else among


def _transform(
    place: str, rule: YamlMapping, parameters: YamlMapping | None, operations: frozenset[int], makers: Makers
) -> Transform | None:
    _empty_deletes(rule, parameters)  # pg_flo's files have it; a transform of an old row without the column has nothing to do
    column = rule.required_text("column", "email")
    if parameters is None:
        if "parameters" not in rule or rule.is_empty("parameters"):
            rule.problem("parameters is missing (write one, like 'parameters: {type: mask, mask_char: \"*\"}')")
        return None
    transformation = _transformation(parameters, makers)
    keeps_unique, is_optional = parameters.switch("keeps_unique") is True, rule.switch("optional") is True
    if column is None or transformation is None:
        return None
    return Transform(place, operations, NamePattern(column), transformation, keeps_unique, is_optional)


def _transformation(parameters: YamlMapping, makers: Makers) -> ValueTransformation | None:
    kind = parameters.text("type")
    if kind is not None and is_class_name(kind):
        if makers.own is None:
            parameters.problem(f"{kind} is a class, which only a file of rules on a worker's own machine may name", "type")
            return None
        return makers.own(kind, parameters)
    match parameters.choice("type", ("regex", "mask")):
        case "mask":
            return _mask(parameters)
        case "regex":
            return _regex(parameters, makers.regex)
    return None


def _mask(parameters: YamlMapping) -> Mask | None:
    parameters.finish((*MASK_KEYS, *SHARED_PARAMETERS))
    mask_char = parameters.text("mask_char") if "mask_char" in parameters else "*"
    if not mask_char or len(mask_char) > 1:
        is_there = f"has {len(mask_char)} characters" if mask_char else "is empty"
        parameters.problem(f'mask_char {is_there} (write one character, in quotes: mask_char: "*")', "mask_char")
        return None
    return Mask(
        mask_char,
        parameters.number("keep_first", 1),
        parameters.number("keep_last", 1),
        parameters.switch("keep_domain") is True,
    )


def _regex(parameters: YamlMapping, make_regex: Callable[[str, str, int], RegexReplace]) -> ValueTransformation | None:
    parameters.finish((*REGEX_KEYS, *SHARED_PARAMETERS))
    pattern = parameters.required_text("pattern", r'"[0-9]+"')
    replace = parameters.required_text("replace", '"#"')
    time_limit_ms = parameters.number("time_limit_ms", TIME_LIMIT_MS, at_least=1, at_most=MOST_TIME_LIMIT_MS)
    if pattern is None or replace is None:
        return None
    try:
        return make_regex(pattern, replace, time_limit_ms)
    except ValueError as error:
        parameters.problem(str(error), "pattern")
        return None


def _filter(place: str, rule: YamlMapping, parameters: YamlMapping | None, operations: frozenset[int]) -> Filter | None:
    empty_deletes = _empty_deletes(rule, parameters)
    if any(key in rule for key in COMPOSITIONS):
        rule.finish((*(key for key in RULE_KEYS if key != "column"), *COMPOSITIONS))
        if parameters is not None:
            parameters.finish(SHARED_PARAMETERS)
        condition = _composition(rule)
    else:
        rule.finish(RULE_KEYS)
        column = rule.required_text("column", "age")
        if parameters is None:
            if "parameters" not in rule or rule.is_empty("parameters"):
                rule.problem(
                    "parameters is missing (write one, like 'parameters: {operator: gte, value: 18}', or all, any or not)"
                )
            return None
        parameters.finish((*CONDITION_KEYS, *SHARED_PARAMETERS))
        condition = _comparison(parameters, column)
    if condition is None:
        return None
    if empty_deletes:
        operations -= {DELETE}
    return Filter(place, operations, condition, empty_deletes is False, rule.switch("optional") is True)


def _condition(mapping: YamlMapping) -> RowCondition | None:
    if any(key in mapping for key in COMPOSITIONS):
        mapping.finish(COMPOSITIONS)
        return _composition(mapping)
    mapping.finish(("column", *CONDITION_KEYS))
    return _comparison(mapping, mapping.required_text("column", "age"))


def _composition(mapping: YamlMapping) -> RowCondition | None:
    given = [key for key in COMPOSITIONS if key in mapping]
    if len(given) > 1:
        mapping.problem(f"{' and '.join(given)} cannot be used side by side (put one inside the other)", given[1])
    if given[0] == "not":
        inner = mapping.mapping("not")
        if inner is None and mapping.is_empty("not"):
            mapping.problem("not needs a condition, like 'not: {column: age, operator: lt, value: 18}'", "not")
        negated = _condition(inner) if inner is not None else None
        return Not(negated) if negated is not None else None
    make: Callable[[tuple[RowCondition, ...]], RowCondition] = AllOf if given[0] == "all" else AnyOf
    found = mapping.mappings(given[0])
    if found == [] or (found is None and mapping.is_empty(given[0])):
        mapping.problem(f"{given[0]} needs at least one condition, like '- {{column: age, operator: gte, value: 18}}'", given[0])
    conditions = [_condition(inner) for inner in found or ()]
    whole = tuple(condition for condition in conditions if condition is not None)
    return make(whole) if whole and len(whole) == len(conditions) else None


def _comparison(mapping: YamlMapping, column: str | None) -> RowCondition | None:
    operator = mapping.choice("operator", (*OPERATORS, CONTAINS))
    value = mapping.required_text("value", "18")
    ignore_case = mapping.switch("ignore_case") is True
    labels = mapping.texts("order")
    if column is None or operator is None or value is None:
        return None
    if operator != CONTAINS:
        return Comparison(column, operator, value, ignore_case, None if labels is None else tuple(labels))
    if labels is not None:
        mapping.problem("order defines how labels compare, and contains does not compare", "order")
    return Contains(column, value, ignore_case)

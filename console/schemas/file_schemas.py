"""The schemas of the files beside the configuration: rules, routing, pipelines, connections of pipelines, search mapping.

Each reader's own tuples say which keys there are, so a key that is added without a description ends the generation.
"""

from __future__ import annotations

from pgsluice.console.executor.schedule_keys import SCHEDULE_KEYS
from pgsluice.console.pipelines.pipelines_file import DELETES_KEYS, NULLS, PIPELINE_KEYS, STEP_KEYS
from pgsluice.console.pipelines.places import BOUND_KEYS, PLACES_KEYS, SINK_KEYS, SOURCE_KEYS
from pgsluice.console.schemas.values import (
    DURATION,
    NULL,
    SCALAR,
    SWITCH,
    TEXTS,
    Schema,
    by_name,
    described,
    document,
    list_of,
    mapping,
    optional,
    whole_number,
    words,
)
from pgsluice.replicator.pipelines.pipeline import RunMode, WriteMode
from pgsluice.rules.orderings import OPERATORS
from pgsluice.rules.regex_replace import MOST_TIME_LIMIT_MS
from pgsluice.rules.rule import OPERATIONS
from pgsluice.rules.rules_file import (
    COMPOSITIONS,
    CONDITION_KEYS,
    CONTAINS,
    MASK_KEYS,
    REGEX_KEYS,
    RULE_KEYS,
    SHARED_PARAMETERS,
    TABLE_KEYS,
    UNLISTED,
)
from pgsluice.rules.transformation_files import RENAMING_KEYS, ROUTE_KEYS, ROUTE_OPERATIONS
from pgsluice.shared.pipelines.run_schedule import OverlapPolicy
from pgsluice.worker.sinks.search.mapping_file import ENTRY_KEYS
from pgsluice.worker.sinks.sink_registry import SINKS

_TEXT = optional(SCALAR)
_OPTIONAL = described(SWITCH, "true: the table or the column need not exist yet")
_EMPTY_DELETES = described(SWITCH, "pg_flo's key: whether deletes pass whose old row lacks the column")
_KEEPS_UNIQUE = described(SWITCH, "true: different values stay different, so a column of the key can be transformed")
_CLASS: Schema = {"type": "string", "pattern": "^[^:]+:[^:]+$"}
_CONDITION: Schema = {"$ref": "#/$defs/condition"}


def _any_case(names: list[str]) -> Schema:
    return words([*names, *(name.lower() for name in names)])


def rules_schema() -> Schema:
    rule = {"anyOf": [{"$ref": "#/$defs/transform"}, {"$ref": "#/$defs/filter"}, {"$ref": "#/$defs/composed"}]}
    rules = optional(list_of(rule))
    settings = mapping(
        TABLE_KEYS,
        {
            "rules": rules,
            "unlisted": described(words([*UNLISTED, None]), "action for columns that no rule names: keep, null or refuse"),
            "keep": described(TEXTS, "columns, or patterns of them, that leave unchanged"),
            "optional": _OPTIONAL,
        },
    )
    tables = described(by_name({"anyOf": [rules, settings]}), "table, schema.table or a pattern such as shop.* → its rules")
    root = mapping(["tables"], {"tables": tables}, required=["tables"])
    return document("rules", "pgsluice rules", "File of rules-config", root | {"$defs": _rule_parts()})


def _rule_parts() -> dict[str, Schema]:
    column = described(SCALAR, "column, or a pattern such as *email")
    operations = described(optional(list_of(_any_case([*OPERATIONS]), least=1)), "default: all")
    shared: dict[str, Schema] = {"operations": operations, "optional": _OPTIONAL, "allow_empty_deletes": _EMPTY_DELETES}
    comparison = _comparison()
    without_column = [key for key in RULE_KEYS if key != "column"]
    compositions = _compositions()
    return {
        "transform": mapping(
            RULE_KEYS,
            {"type": {"const": "transform"}, "column": column, "parameters": _transformations(), **shared},
            required=["type", "column", "parameters"],
        ),
        "filter": mapping(
            RULE_KEYS,
            {
                "type": {"const": "filter"},
                "column": column,
                "parameters": mapping(
                    [*CONDITION_KEYS, *SHARED_PARAMETERS],
                    {**comparison, "allow_empty_deletes": _EMPTY_DELETES},
                    required=["operator", "value"],
                ),
                **shared,
            },
            required=["type", "column", "parameters"],
        ),
        "composed": mapping(
            [*without_column, *COMPOSITIONS],
            {
                "type": {"const": "filter"},
                "parameters": optional(mapping(SHARED_PARAMETERS, {"allow_empty_deletes": _EMPTY_DELETES})),
                **shared,
                **compositions,
            },
            required=["type"],
        )
        | _one_of_compositions(),
        "condition": {
            "anyOf": [
                mapping(["column", *CONDITION_KEYS], {"column": column, **comparison}, required=["column", "operator", "value"]),
                mapping(COMPOSITIONS, compositions) | _one_of_compositions(),
            ]
        },
    }


def _comparison() -> dict[str, Schema]:
    return {
        "operator": words([*OPERATORS, CONTAINS]),
        "value": SCALAR,
        "ignore_case": SWITCH,
        "order": described(TEXTS, "labels of an enum, the smallest first"),
    }


def _compositions() -> dict[str, Schema]:
    several = list_of(_CONDITION, least=1)
    return {"all": several, "any": several, "not": _CONDITION}


def _one_of_compositions() -> Schema:
    return {"oneOf": [{"required": [key]} for key in COMPOSITIONS]}


def _transformations() -> Schema:
    mask = mapping(
        [*MASK_KEYS, *SHARED_PARAMETERS],
        {
            "type": {"const": "mask"},
            "mask_char": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 1}, {"enum": [*range(10)]}]},
            "keep_first": optional(whole_number()),
            "keep_last": optional(whole_number()),
            "keep_domain": described(SWITCH, "true: keep the part of an e-mail address after the @"),
            "keeps_unique": _KEEPS_UNIQUE,
            "allow_empty_deletes": _EMPTY_DELETES,
        },
        required=["type"],
    )
    regex = mapping(
        [*REGEX_KEYS, *SHARED_PARAMETERS],
        {
            "type": {"const": "regex"},
            "pattern": SCALAR,
            "replace": SCALAR,
            "time_limit_ms": optional(whole_number(1, MOST_TIME_LIMIT_MS)),
            "keeps_unique": _KEEPS_UNIQUE,
            "allow_empty_deletes": _EMPTY_DELETES,
        },
        required=["type", "pattern", "replace"],
    )
    own = described({"type": "object", "properties": {"type": _CLASS}, "required": ["type"]}, "a custom rule, module:Class")
    return {"anyOf": [mask, regex, own]}


def routing_schema() -> Schema:
    pair = mapping(RENAMING_KEYS, dict.fromkeys(RENAMING_KEYS, SCALAR), required=RENAMING_KEYS)
    route = mapping(
        ROUTE_KEYS,
        {
            "source_table": described(_TEXT, "pg_flo's key: the route's own table"),
            "destination_table": described(_TEXT, "table, or schema.table; default: the source's"),
            "destination_schema": described(_TEXT, "default: the source's"),
            "column_mappings": described(optional(list_of(pair)), "renamed columns; others keep their names"),
            "drop_columns": TEXTS,
            "operations": described(optional(list_of(_any_case([*ROUTE_OPERATIONS, "DDL"]))), "default: all"),
            "optional": _OPTIONAL,
        },
    )
    root = by_name({"anyOf": [{"$ref": "#/$defs/route"}, list_of({"$ref": "#/$defs/route"}, least=1)]})
    return document(
        "routing", "pgsluice routing", "File of routing-config: table → its routes", root | {"$defs": {"route": route}}
    )


def pipelines_schema() -> Schema:
    root = mapping(["pipelines"], {"pipelines": optional(by_name({"$ref": "#/$defs/pipeline"}))}, required=["pipelines"])
    return document(
        "pipelines", "pgsluice SQL pipelines", "File of pipelines-config", root | {"$defs": {"pipeline": _pipeline()}}
    )


def pipeline_schema() -> Schema:
    return document("pipeline", "pgsluice SQL pipeline", "One SQL pipeline, as the server stores it", _pipeline())


def _pipeline() -> Schema:
    step = {
        "anyOf": [
            mapping(["sql"], {"sql": SCALAR}, required=["sql"]),
            mapping(
                [key for key in STEP_KEYS if key != "sql"],
                {"python": described(_CLASS, "module:function"), "with": {"type": ["object", "null"]}},
                required=["python"],
            ),
        ]
    }
    deletes = mapping(DELETES_KEYS, {"column": SCALAR, "reconcile": DURATION}) | {"minProperties": 1, "maxProperties": 1}
    runs: dict[str, Schema] = {
        "schedule": described(_TEXT, "cron expression, such as '*/15 * * * *'"),
        "time-zone": described(_TEXT, "of the schedule, such as Europe/Berlin; default: UTC"),
        "every": described(optional(DURATION), "interval between runs, in place of schedule"),
        "overlap-policy": words([str(each) for each in OverlapPolicy]),
    }
    return mapping(
        PIPELINE_KEYS,
        {
            "query": described({"type": "string"}, "SELECT whose rows fill the target"),
            "target": described({"type": "string"}, "schema.table"),
            "key": described(list_of(SCALAR, least=1), "columns that identify a row"),
            "group": described(_TEXT, "default: the pipeline's name"),
            "mode": optional(words([str(each) for each in RunMode])),
            "write": optional(words([str(each) for each in WriteMode])),
            "incremental-key": described(_TEXT, "column that grows, for mode: incremental"),
            "incremental-id-key": TEXTS,
            "overlap": described(_TEXT, "longest delay of late rows, such as 10m"),
            "nulls": optional(words(NULLS)),
            "batch-rows": optional(whole_number(1)),
            "tasks": optional(whole_number(1)),
            "retries": optional(whole_number()),
            "statement-timeout": optional(DURATION),
            "deletes": deletes,
            "source": described(_TEXT, "name of a source in the file of pipelines-places"),
            "sink": described(_TEXT, "name of a sink in the file of pipelines-places"),
            **{key: runs[key] for key in SCHEDULE_KEYS},
            "steps": optional(list_of(step)),
            "max-dead-letters": optional(whole_number()),
        },
        required=["query", "target", "key"],
    )


def places_schema() -> Schema:
    path = described({"type": "string"}, "configuration file, relative to this one")
    source = mapping(
        SOURCE_KEYS,
        {"config": path, "trusted": described(SWITCH, "true: documents can use a role that can write")},
        required=["config"],
    )
    sink = mapping(
        SINK_KEYS,
        {
            "kind": {"anyOf": [words(SINKS), _CLASS]},
            "config": path,
            "targets": described(list_of(SCALAR, least=1), "tables that pipelines can fill, or patterns of them"),
        },
        required=SINK_KEYS,
    )
    bounds = described(mapping(BOUND_KEYS, dict.fromkeys(BOUND_KEYS, TEXTS)), "limits of stored group configurations")
    root = mapping(
        PLACES_KEYS,
        {
            "sources": optional(by_name(source)),
            "sinks": optional(by_name(sink)),
            "modules": described(TEXTS, "modules that steps can call, or patterns of them"),
            "groups": optional(bounds),
        },
    )
    return document("places", "pgsluice pipelines-places", "File of pipelines-places: what pipelines and groups can name", root)


def search_mapping_schema() -> Schema:
    field = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
    entry = mapping(
        ENTRY_KEYS,
        {
            "settings": described(optional({"type": "object"}), "settings of the index"),
            "columns": described(optional(by_name(field)), "column → its field, as the search server expects it"),
        },
    )
    root = mapping(["tables"], {"tables": by_name({"anyOf": [entry, NULL]})}, required=["tables"])
    return document("search-mapping", "pgsluice search-mapping", "File of search-mapping: fields and index settings", root)

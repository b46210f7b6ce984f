"""The pipelines file: which queries are read, and how, read strictly (``rules.document``).

    pipelines:
      film_ratings:
        query: |
          SELECT f.id, f.title, avg(r.stars) AS stars, max(r.updated_at) AS updated_at
            FROM film f JOIN rating r ON r.film_id = f.id GROUP BY f.id, f.title
        target: analytics.film_ratings
        key: [id]
        mode: incremental
        incremental-key: updated_at

docs/how-to/sql-pipelines.md says what the keys mean.
"""

from __future__ import annotations

import re
from typing import TypeVar

from pgsluice.replicator.pipelines.pipeline import (
    DEFAULT_BATCH_ROWS,
    DEFAULT_RETRIES,
    DEFAULT_TASKS,
    Pipeline,
    RunMode,
    WriteMode,
)
from pgsluice.rules.document import YamlMapping, open_document
from pgsluice.shared.config.kinds import parse_duration
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames

MOST_TASKS = 1024

_KIND = "sql-pipelines file"
_KEYS = (
    "query",
    "target",
    "key",
    "group",
    "mode",
    "write",
    "incremental-key",
    "incremental-id-key",
    "overlap",
    "nulls",
    "batch-rows",
    "tasks",
    "retries",
    "statement-timeout",
)
E = TypeVar("E", RunMode, WriteMode)

_NULLS = ("refuse", "skip")
_OVERLAP = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_pipelines(path: str, schema: str = "public") -> dict[str, Pipeline]:
    """By name. ``schema`` is where names of a query without one are looked up. Raises UsageError with all that is wrong."""
    if not path:
        raise UsageError("pipelines-config is not set", "name the pipelines file: 'pipelines-config: pipelines.yaml'")
    root, problems = open_document(path, _KIND)
    root.finish(("pipelines",))
    listed = root.mapping("pipelines")
    if listed is None and "pipelines" not in root:
        root.problem("pipelines is missing")
    found: dict[str, Pipeline] = {}
    for name in listed.keys() if listed is not None else ():
        assert listed is not None
        pipeline = _pipeline(listed, name, schema)
        if pipeline is not None:
            other = next((each.name for each in found.values() if each.group == pipeline.group), None)
            if other is not None:
                listed.problem(f"pipeline '{name}' has the group of pipeline '{other}'", name)
            found[name] = pipeline
    problems.check()
    return found


def find_pipeline(path: str, name: str, schema: str) -> Pipeline:
    """Raises UsageError when the file does not hold it."""
    pipelines = read_pipelines(path, schema)
    if name not in pipelines:
        raise UsageError(f"there is no pipeline '{name}' in {path}", f"there are {', '.join(pipelines) or 'none'}")
    return pipelines[name]


def _pipeline(listed: YamlMapping, name: str, schema: str) -> Pipeline | None:
    """None when it has problems, which are noted."""
    given = listed.mapping(name)
    if given is None:
        if listed.is_empty(name):
            listed.problem(f"pipeline '{name}' is empty", name)
        return None
    given.where = f"pipeline '{name}'"
    given.finish(_KEYS)
    group, query, target = given.text("group") or name, _query(given), _target(given)
    key = tuple(given.texts("key") or ())
    if not key:
        given.problem("key is missing (name the columns that tell its rows apart, like 'key: [id]')", "key")
    mode, write = _chosen(given, "mode", RunMode, RunMode.FULL), _chosen(given, "write", WriteMode, WriteMode.MERGE)
    _check_group(given, group)
    incremental_key = _incremental_key(given, mode)
    pipeline = Pipeline(
        name=name,
        group=group,
        query=query,
        schema=target[0],
        table=target[1],
        key=key,
        mode=mode,
        write=write,
        incremental_key=incremental_key,
        id_key=tuple(given.texts("incremental-id-key") or ()),
        overlap=_overlap(given),
        skips_nulls=_nulls(given) == "skip",
        batch_rows=given.number("batch-rows", DEFAULT_BATCH_ROWS, at_least=1),
        tasks=min(MOST_TASKS, given.number("tasks", DEFAULT_TASKS, at_least=1)),
        retries=given.number("retries", DEFAULT_RETRIES),
        statement_timeout_s=_timeout(given),
        search_path=schema,
    )
    return pipeline if query and target[1] and key else None


def _query(given: YamlMapping) -> str:
    """Without the semicolon that people end a statement with."""
    return (given.required_text("query", "SELECT id, name FROM film") or "").strip().removesuffix(";").rstrip()


def _target(given: YamlMapping) -> tuple[str, str]:
    text = given.required_text("target", "analytics.film_ratings")
    if text is None:
        return "", ""
    schema, _, table = text.rpartition(".")
    if not table or "." in schema or '"' in text:
        given.problem(f"target '{text}' is not a table (write 'schema.table')", "target")
        return "", ""
    return schema or "public", table


def _chosen(given: YamlMapping, key: str, kinds: type[E], default: E) -> E:
    if given.text(key) is None:
        return default
    text = given.choice(key, [str(kind) for kind in kinds])
    return default if text is None else kinds(text)


def _check_group(given: YamlMapping, group: str) -> None:
    try:
        GroupNames(group)
    except UsageError as error:
        given.problem(f"{error.fact}; {error.remedy}", "group")


def _incremental_key(given: YamlMapping, mode: RunMode) -> str:
    text = given.text("incremental-key") or ""
    if mode is RunMode.INCREMENTAL and not text:
        given.problem("incremental-key is missing (name the column that grows, like 'incremental-key: updated_at')")
    if mode is RunMode.FULL:
        for key in ("incremental-key", "incremental-id-key", "overlap"):
            if key in given:
                given.problem(f"{key} has no meaning without 'mode: incremental'", key)
        return ""
    return text


def _overlap(given: YamlMapping) -> str:
    """As the server takes it: a number, or an interval."""
    text = given.text("overlap") or ""
    match = _OVERLAP.fullmatch(text)
    if text and match is None:
        given.problem(f"overlap '{text}' is neither a duration nor a number (write it like 10m or 1000)", "overlap")
        return ""
    if match is None or match[2] is None:
        return text
    count = text.removesuffix(match[2])
    return "0" if int(count) == 0 else f"{count} {_UNITS[match[2]]}"


def _nulls(given: YamlMapping) -> str:
    return _NULLS[0] if given.text("nulls") is None else given.choice("nulls", _NULLS) or _NULLS[0]


def _timeout(given: YamlMapping) -> float:
    text = given.text("statement-timeout")
    if text is None:
        return 0.0
    try:
        return parse_duration(text)
    except ValueError as error:
        given.problem(f"statement-timeout '{text}' {error}; write it like 10m", "statement-timeout")
        return 0.0

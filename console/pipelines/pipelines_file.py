"""The pipelines file: queries and their modes, read strictly (``rules.document``).

    pipelines:
      film_ratings:
        query: |
          SELECT f.id, f.title, avg(r.stars) AS stars, max(r.updated_at) AS updated_at
            FROM film f JOIN rating r ON r.film_id = f.id GROUP BY f.id, f.title
        target: analytics.film_ratings
        key: [id]
        mode: incremental
        incremental-key: updated_at

docs/how-to/sql-pipelines.md describes the keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from pgsluice.console.executor.schedule_keys import SCHEDULE_KEYS, read_schedule
from pgsluice.replicator.pipelines.pipeline import (
    DEFAULT_MAX_DEAD_LETTERS,
    DEFAULT_RETRIES,
    Pipeline,
    RunMode,
    WriteMode,
)
from pgsluice.replicator.pipelines.steps.step import PythonStep, SqlStep, Step
from pgsluice.rules.document import Problems, YamlMapping, open_document
from pgsluice.shared.config.kinds import parse_duration
from pgsluice.shared.config.yaml_nodes import OF_STRANGERS, read_text
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames

MOST_TASKS = 1024

_KIND = "sql-pipelines file"
PIPELINE_KEYS = (
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
    "deletes",
    "source",
    "sink",
    *SCHEDULE_KEYS,
    "steps",
    "max-dead-letters",
)
STEP_KEYS = ("python", "with", "sql")
DELETES_KEYS = ("column", "reconcile")

E = TypeVar("E", RunMode, WriteMode)

NULLS = ("refuse", "skip")
_OVERLAP = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_pipelines(path: str, schema: str = "public") -> dict[str, Pipeline]:
    """Returns the pipelines by name. ``schema`` is where names of a query without one are looked up. Raises UsageError
    with all errors."""
    if not path:
        raise UsageError("pipelines-config is not set", "name the pipelines file: 'pipelines-config: pipelines.yaml'")
    return parse_pipelines(path, read_text(path, _KIND), schema)


def parse_pipelines(place: str, text: str, schema: str = "public") -> dict[str, Pipeline]:
    """Parses ``text``, which ``place`` names."""
    problems, described = _described(place, text)
    found: dict[str, Pipeline] = {}
    for name, given in described.items():
        pipeline = _pipeline(given, name, schema)
        if pipeline is not None:
            other = next((each.name for each in found.values() if each.group == pipeline.group), None)
            if other is not None:
                given.problem(f"the group is that of pipeline '{other}'")
            found[name] = pipeline
    problems.check()
    return found


def pipeline_contents(place: str, text: str) -> dict[str, Mapping[str, object]]:
    """Returns the keys of each pipeline in ``text``, as JSON values. Raises UsageError with all errors."""
    parse_pipelines(place, text)
    _, described = _described(place, text)
    return {name: _content(given) for name, given in described.items()}


def parse_pipeline(place: str, text: str, name: str) -> tuple[Pipeline, Mapping[str, object]]:
    """Parses one pipeline of a document: the text of a pipelines file under the name. Also returns its keys. Raises
    UsageError with all errors."""
    given, problems = open_document(place, _KIND, text, OF_STRANGERS)
    given.where = f"pipeline '{name}'"
    pipeline = _pipeline(given, name, "public")
    problems.check()
    assert pipeline is not None
    return pipeline, _content(given)


def _content(given: YamlMapping) -> Mapping[str, object]:
    keys = given.keys()
    return {key: given.typed(key) if key == "steps" else given.plain(key) for key in keys if not given.is_empty(key)}


def _described(place: str, text: str) -> tuple[Problems, dict[str, YamlMapping]]:
    root, problems = open_document(place, _KIND, text)
    root.finish(("pipelines",))
    listed = root.mapping("pipelines")
    if listed is None and "pipelines" not in root:
        root.problem("pipelines is missing")
    found: dict[str, YamlMapping] = {}
    for name in listed.keys() if listed is not None else ():
        assert listed is not None
        given = listed.mapping(name)
        if given is not None:
            given.where = f"pipeline '{name}'"
            found[name] = given
        elif listed.is_empty(name):
            listed.problem(f"pipeline '{name}' is empty", name)
    return problems, found


def _pipeline(given: YamlMapping, name: str, schema: str) -> Pipeline | None:
    """Returns None when it has problems, which are noted."""
    given.finish(PIPELINE_KEYS)
    group, query, target = given.text("group") or name, _query(given), _target(given)
    key = tuple(given.texts("key") or ())
    if not key:
        given.problem("key is missing (name the columns that identify its rows, like 'key: [id]')", "key")
    mode, write = _chosen(given, "mode", RunMode, RunMode.FULL), _chosen(given, "write", WriteMode, WriteMode.MERGE)
    _check_group(given, group)
    incremental_key, deletes = _incremental_key(given, mode), _deletes(given, write)
    if write is WriteMode.REPLACE and mode is not RunMode.FULL:
        given.problem("'write: replace' wants 'mode: full': a run with the newest rows alone would remove all others", "write")
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
        deleted_column=deletes[0],
        reconcile_every_s=deletes[1],
        batch_rows=given.number("batch-rows", 0, at_least=1),
        tasks=min(MOST_TASKS, given.number("tasks", 0, at_least=1)),
        retries=given.number("retries", DEFAULT_RETRIES),
        statement_timeout_s=_timeout(given),
        search_path=schema,
        source=given.text("source") or "",
        sink=given.text("sink") or "",
        schedule=read_schedule(given),
        steps=_steps(given),
        max_dead_letters=given.number("max-dead-letters", DEFAULT_MAX_DEAD_LETTERS),
    )
    return pipeline if query and target[1] and key else None


def _query(given: YamlMapping) -> str:
    """Returns the query without a final semicolon."""
    text = given.required_text("query", "SELECT id, name FROM film")
    query = (text or "").strip().removesuffix(";").rstrip()
    if text is not None and not query:
        given.problem("query is empty", "query")
    return query


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


def _deletes(given: YamlMapping, write: WriteMode) -> tuple[str, float]:
    """Returns the column that marks deleted rows, and how often the target is compared with the query, in seconds."""
    if "deletes" not in given:
        return "", 0.0
    deletes = given.mapping("deletes")
    if deletes is None:
        given.problem("deletes is not a mapping (write 'deletes: {column: deleted_at}' or '{reconcile: 24h}')", "deletes")
        return "", 0.0
    deletes.finish(DELETES_KEYS)
    if write is not WriteMode.MERGE:
        given.problem(f"deletes has no meaning with 'write: {write}'", "deletes")
    column, every = deletes.text("column") or "", deletes.text("reconcile")
    if bool(column) is (every is not None):
        given.problem("deletes holds neither or both of column and reconcile (name one of them)", "deletes")
    return column, 0.0 if every is None else _duration(deletes, "reconcile", every, "24h")


def _overlap(given: YamlMapping) -> str:
    """Returns the overlap as the server accepts it: a number, or an interval."""
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
    return NULLS[0] if given.text("nulls") is None else given.choice("nulls", NULLS) or NULLS[0]


def _steps(given: YamlMapping) -> tuple[Step, ...]:
    found = []
    for each in given.mappings("steps", f"{given.where}, step") or ():
        each.finish(STEP_KEYS)
        step = _sql_step(each) if "sql" in each else _python_step(each)
        if step is not None:
            found.append(step)
    return tuple(found)


def _sql_step(given: YamlMapping) -> Step | None:
    for key in ("python", "with"):
        if key in given:
            given.problem(f"{key} has no effect together with sql", key)
    text = given.required_text("sql", "SELECT * FROM rows WHERE title <> ''")
    return None if text is None else SqlStep(text)


def _python_step(given: YamlMapping) -> Step | None:
    place, settings = given.required_text("python", "marts.ratings:clean"), given.typed("with")
    if settings is not None and not isinstance(settings, dict):
        given.problem("with is not a mapping of keys to values", "with")
    elif place is not None:
        try:
            return PythonStep.parse(place, settings or {})
        except ValueError as error:
            given.problem(f"'{place}' {error}", "python")
    return None


def _timeout(given: YamlMapping) -> float:
    text = given.text("statement-timeout")
    return 0.0 if text is None else _duration(given, "statement-timeout", text, "10m")


def _duration(given: YamlMapping, key: str, text: str, example: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        given.problem(f"{key} '{text}' {error}; write it like {example}", key)
        return 0.0

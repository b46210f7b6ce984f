"""The places file: what documents may name. The administrator writes it; a pipeline names only sources and sinks that are in it.

    sources:
      shop: {config: shop.yaml}      # trusted: true where documents may have a role run that may do more than read
    sinks:
      warehouse: {kind: postgres, config: warehouse.yaml, targets: ["analytics.*"]}
    modules: ["marts.*"]
    groups: {variables: ["SHOP_*"]}

Hosts, users and references to passwords are in the configuration files that it names, so no pipeline's document ever holds one.
A process that begins a run checks the pipeline against this file, whatever was checked before. ``groups`` bounds what documents
of groups name (``console.documents.document_bounds``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgsluice.console.documents.document_bounds import DocumentBounds
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.steps.step import check_modules
from pgsluice.rules.document import YamlMapping, open_document
from pgsluice.shared.config.yaml_nodes import read_text
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import check_worker_name
from pgsluice.shared.wire.table import TablePattern
from pgsluice.worker.sinks.sink_registry import SINKS, is_sink_class

_KIND = "sql-pipelines places file"
PLACES_KEYS = ("sources", "sinks", "modules", "groups")
SOURCE_KEYS = ("config", "trusted")
SINK_KEYS = ("kind", "config", "targets")
BOUND_KEYS = ("variables", "hosts", "directories", "sinks", "alert-commands", "spark")


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """``name`` is also the name of the worker which fills it; ``config`` is that worker's configuration, a path."""

    name: str
    kind: str
    config: str
    targets: tuple[TablePattern, ...]

    def takes(self, schema: str, table: str) -> bool:
        return any(pattern.matches(schema, table) for pattern in self.targets)


@dataclass(frozen=True, slots=True)
class Places:
    """``sources`` are configuration files of runs, by name; ``trusted`` are sources at which a document may be run by a
    role that may do more than read. ``modules`` are patterns of names: ``*`` matches anything. ``groups`` are for
    documents of groups."""

    path: str
    sources: Mapping[str, str]
    sinks: Mapping[str, SinkPlace]
    modules: tuple[str, ...]
    groups: DocumentBounds
    trusted: frozenset[str] = frozenset()

    def check(self, pipeline: Pipeline) -> None:
        """Raises UsageError for the first thing that it names and may not."""
        if pipeline.source and pipeline.source not in self.sources:
            raise self._refused(pipeline, f"source '{pipeline.source}'", self.sources)
        check_modules(pipeline.name, pipeline.steps, self.modules)
        if not pipeline.sink:
            return
        if pipeline.sink not in self.sinks:
            raise self._refused(pipeline, f"sink '{pipeline.sink}'", self.sinks)
        sink = self.sinks[pipeline.sink]
        if not sink.takes(pipeline.schema, pipeline.table):
            allowed = ", ".join(pattern.text for pattern in sink.targets)
            raise UsageError(
                f"pipeline '{pipeline.name}' may not fill {pipeline.schema}.{pipeline.table} in sink '{pipeline.sink}'",
                f"choose a target that the administrator allows there: {allowed}",
            )

    def _refused(self, pipeline: Pipeline, what: str, there: Mapping[str, object]) -> UsageError:
        known = ", ".join(there) or "none"
        return UsageError(
            f"pipeline '{pipeline.name}' names {what}, which the administrator's places do not hold", f"there are {known}"
        )


def read_places(path: str) -> Places:
    """Raises UsageError with all that is wrong with the file."""
    root, problems = open_document(path, _KIND, read_text(path, "places file"))
    root.finish(PLACES_KEYS)
    folder = Path(path).parent
    named = _named(root, "sources", "source")
    sources = {name: _source(given, folder) for name, given in named.items()}
    trusted = frozenset(name for name, given in named.items() if given.switch("trusted"))
    sinks = {name: _sink(name, given, folder) for name, given in _named(root, "sinks", "sink").items()}
    modules = tuple(root.texts("modules") or ())
    groups = _bounds(root.mapping("groups"), folder)
    problems.check()
    return Places(path, sources, sinks, modules, groups, trusted)


def read_bounds(path: str) -> DocumentBounds:
    """Returns what documents of groups may name by the places file at ``path``, "" for none. Raises as ``read_places``."""
    return read_places(path).groups if path else DocumentBounds()


def _bounds(given: YamlMapping | None, folder: Path) -> DocumentBounds:
    if given is None:
        return DocumentBounds()
    given.where = "groups"
    given.finish(BOUND_KEYS)
    hosts, sinks = given.texts("hosts"), given.texts("sinks")
    return DocumentBounds(
        variables=tuple(given.texts("variables") or ()),
        hosts=None if hosts is None else tuple(host.lower() for host in hosts),
        directories=tuple(os.fspath(folder / text) for text in given.texts("directories") or ()),
        sinks=DocumentBounds().sinks if sinks is None else tuple(sinks),
        alert_commands=tuple(given.texts("alert-commands") or ()),
        spark=tuple(given.texts("spark") or ()),
    )


def _named(root: YamlMapping, key: str, called: str) -> dict[str, YamlMapping]:
    listed = root.mapping(key)
    found: dict[str, YamlMapping] = {}
    for name in listed.keys() if listed is not None else ():
        assert listed is not None
        given = listed.mapping(name)
        if given is None:
            listed.problem(f"{called} '{name}' names no configuration file (write '{name}: {{config: {name}.yaml}}')", name)
            continue
        given.where = f"{called} '{name}'"
        found[name] = given
    return found


def _config(given: YamlMapping, folder: Path) -> str:
    text = given.required_text("config", "shop.yaml") or ""
    return os.fspath(folder / text)


def _source(given: YamlMapping, folder: Path) -> str:
    given.finish(SOURCE_KEYS)
    return _config(given, folder)


def _sink(name: str, given: YamlMapping, folder: Path) -> SinkPlace:
    given.finish(SINK_KEYS)
    try:
        check_worker_name(name)
    except UsageError as error:
        given.problem(f"{error.fact}; {error.remedy}")
    kind = given.required_text("kind", "postgres") or ""
    if kind and kind not in SINKS and not is_sink_class(kind):
        given.problem(f"kind '{kind}' is no sink (there are {', '.join(SINKS)}, and module:Class)", "kind")
    texts = given.texts("targets") or []
    if not texts:
        given.problem(
            "targets is missing (name the tables that pipelines may fill, like 'targets: [\"analytics.*\"]')", "targets"
        )
    return SinkPlace(name, kind, _config(given, folder), tuple(filter(None, (_pattern(given, text) for text in texts))))


def _pattern(given: YamlMapping, text: str) -> TablePattern | None:
    try:
        return TablePattern.parse(text).within("public")
    except ValueError as error:
        given.problem(f"target '{text}' {error}", "targets")
        return None

"""All pipelines, of the file and in documents: the one place that decides which may run, and with what.

It is asked right before each run: any client of the broker may have written a document, so it is checked against the
administrator's places again. Where a pipeline may not run nothing of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_settings import environment_for
from pgsluice.console.documents.document_store import DocumentStore, StoredDocument
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.flags import known_options
from pgsluice.console.pipelines.pipeline_document import PipelineDocument
from pgsluice.console.pipelines.pipelines_file import read_pipelines
from pgsluice.console.pipelines.places import Places, read_places
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.replicator.pipelines.steps.step import has_python, has_sql
from pgsluice.shared import config
from pgsluice.shared.config.connections import NatsSettings
from pgsluice.shared.config.yaml_nodes import read_text
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.pipelines.pipeline_settings import CatalogSettings, PipelineSettings, ReadingSettings


@dataclass(frozen=True, slots=True)
class ListedPipeline:
    """``pipeline`` is None where its document cannot be read. ``document`` is the document's revision, None for a
    pipeline of the file. ``problem`` is why it may not run, None when it may."""

    name: str
    pipeline: Pipeline | None
    document: int | None = None
    problem: PgsluiceError | None = None


@dataclass(frozen=True, slots=True)
class RunnablePipeline:
    """A pipeline that may run, and the settings of its run."""

    pipeline: Pipeline
    settings: PipelineSettings


class PipelineCatalog:
    """``own`` is for pipelines that name no source, None without one. Files are read whenever they are needed, so they
    may be changed meanwhile."""

    def __init__(
        self,
        settings: CatalogSettings,
        nats: NatsSettings,
        own: ReadingSettings | None,
        control: ControlBucket,
    ) -> None:
        self._settings = settings
        self._nats = nats
        self._own = own
        self._documents = DocumentStore(control, PipelineDocument)
        self._groups = DocumentStore(control, GroupDocument)

    def places(self) -> Places | None:
        """Returns None where the administrator names none. Raises UsageError for a file that cannot be used."""
        return read_places(self._settings.places) if self._settings.places else None

    async def all(self) -> list[ListedPipeline]:
        """Returns the file's pipelines in order, then documents by name. Raises UsageError when file or places cannot
        be used, TransientError."""
        places = self.places()
        listed = [self._of_file(pipeline, places) for pipeline in self._file().values()]
        replicated = await self._replicated()
        for name in sorted(await self._documents.names()):
            try:
                stored = await self._documents.find(name)
            except TerminalError as problem:
                listed.append(ListedPipeline(name, None, await self._documents.revision(name), problem))
                continue
            if stored is not None:
                listed.append(self._of_document(stored, places, listed, replicated))
        return listed

    async def find(self, name: str) -> RunnablePipeline:
        """Raises UsageError for a missing one, or one that may not run; TransientError."""
        found = await self.listed(name)
        if found.problem is not None:
            raise found.problem
        assert found.pipeline is not None
        places = self.places()
        settings = self._settings_of(found.pipeline, places)
        if found.document is not None:
            is_trusted = places is not None and found.pipeline.source in places.trusted
            settings = replace(settings, is_reader_required=not is_trusted)
        return RunnablePipeline(replace(found.pipeline, search_path=settings.schema), settings)

    async def listed(self, name: str) -> ListedPipeline:
        """Raises UsageError for a missing one; TransientError."""
        listed = await self.all()
        found = next((each for each in listed if each.name == name), None)
        if found is None:
            there = ", ".join(each.name for each in listed) or "none"
            raise UsageError(f"there is no pipeline '{name}'{self._where}", f"there are {there}")
        return found

    async def check_document(self, document: PipelineDocument) -> None:
        """Checks a document before it is stored. Raises UsageError for a name in it that is not allowed;
        TransientError."""
        others = [each for each in await self.all() if each.document is None or each.name != document.name]
        replicated, pipeline = await self._replicated(), document.parsed()
        self._required_places(pipeline.name, self.places()).check(pipeline)
        _check_alone(pipeline, others, replicated)
        if has_sql(pipeline.steps):
            from pgsluice.replicator.pipelines.steps.step_chain import check_statements

            await asyncio.to_thread(check_statements, pipeline.steps)

    @property
    def _where(self) -> str:
        return f" in {self._settings.file}, nor a document of that name" if self._settings.file else " among the documents"

    def _file(self) -> dict[str, Pipeline]:
        return read_pipelines(self._settings.file) if self._settings.file else {}

    async def _replicated(self) -> set[str]:
        """Returns groups that have their own document."""
        return {name for name in await self._groups.names() if await self._is_replicated(name)}

    async def _is_replicated(self, group: str) -> bool:
        """A document that cannot be read is one too."""
        try:
            return await self._groups.find(group) is not None
        except TerminalError:
            return True

    def _of_file(self, pipeline: Pipeline, places: Places | None) -> ListedPipeline:
        try:
            if pipeline.source or pipeline.sink or has_python(pipeline.steps):
                self._required_places(pipeline.name, places).check(pipeline)
            if not pipeline.source and self._own is None:
                raise UsageError(
                    f"pipeline '{pipeline.name}' names no source, and none is configured", "write 'source: …', or give host"
                )
        except UsageError as problem:
            return ListedPipeline(pipeline.name, pipeline, problem=problem)
        return ListedPipeline(pipeline.name, pipeline)

    def _of_document(
        self,
        stored: StoredDocument[PipelineDocument],
        places: Places | None,
        others: Iterable[ListedPipeline],
        replicated: set[str],
    ) -> ListedPipeline:
        name, pipeline = stored.document.name, None
        try:
            pipeline = stored.document.parsed()
            self._required_places(name, places).check(pipeline)
            _check_alone(pipeline, others, replicated)
        except UsageError as problem:
            return ListedPipeline(name, pipeline, stored.revision, problem)
        return ListedPipeline(name, pipeline, stored.revision)

    def _required_places(self, name: str, places: Places | None) -> Places:
        if places is None:
            raise UsageError(
                f"pipeline '{name}' names places or modules, and the administrator has named none",
                "set pipelines-places to a file that lists the sources, sinks and modules",
            )
        return places

    def _settings_of(self, pipeline: Pipeline, places: Places | None) -> PipelineSettings:
        """Raises UsageError for a place whose configuration cannot be used here, as with a variable that is not set."""
        modules = () if places is None else places.modules
        if not pipeline.source:
            assert self._own is not None
            return PipelineSettings.of(self._nats, self._own, modules)
        path = self._required_places(pipeline.name, places).sources[pipeline.source]
        environment = environment_for(read_text(path, "configuration file"))
        values = config.load({"config": path}, environment, ReadingSettings, known=known_options())
        return PipelineSettings.of(self._nats, config.make(ReadingSettings, values), modules)


def _check_alone(pipeline: Pipeline, others: Iterable[ListedPipeline], replicated: set[str]) -> None:
    """Raises UsageError where another one has its name or its group."""
    for other in others:
        if other.name == pipeline.name:
            raise UsageError(f"the file has a pipeline '{pipeline.name}' too", "give the document another name")
        if other.pipeline is not None and other.pipeline.group == pipeline.group:
            raise UsageError(
                f"pipeline '{pipeline.name}' has the group of pipeline '{other.name}'", "give each pipeline a separate group"
            )
    if pipeline.group in replicated:
        raise UsageError(
            f"group '{pipeline.group}' of pipeline '{pipeline.name}' has a separate configuration",
            "give the pipeline another group",
        )

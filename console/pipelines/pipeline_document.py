"""A SQL pipeline as a document of the server: the text of a pipelines file under its name, as a record with a history.

It holds no host, no user and no secret, since there is no key for any: it names places (``console.pipelines.places``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import orjson

from pgsluice.console.documents.group_document import check_size
from pgsluice.console.pipelines.pipelines_file import parse_pipeline, pipeline_contents
from pgsluice.replicator.pipelines.pipeline import Pipeline
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """``content`` is the document by key. ``applied_by`` is for readers."""

    name: str
    content: Mapping[str, object] = field(repr=False)
    applied_at: TimeText = ""
    applied_by: str = ""

    KEY_PREFIX: ClassVar[str] = "pipeline."
    MALFORMED_REMEDY: ClassVar[str] = "PUT the pipeline again, or delete it"

    def stamped(self, at: str, by: str) -> PipelineDocument:
        return replace(self, applied_at=at, applied_by=by)

    def check(self) -> None:
        """Raises UsageError for a name that no document has. The reader of the document calls ``parsed`` for its content."""
        GroupNames(self.name)

    def parsed(self) -> Pipeline:
        """Raises UsageError with all that is wrong with it: what is stored may have been put there by anybody."""
        pipeline, _ = parse_pipeline("its document", format_pipeline(self), self.name)
        _check(pipeline)
        return pipeline


def parse_pipeline_document(place: str, text: str, name: str) -> PipelineDocument:
    """``text`` is what the pipelines file has under ``name``. Raises UsageError with all that is wrong with it."""
    check_size(place, text)
    _, content = parse_pipeline(place, text, name)
    document = PipelineDocument(name, content)
    document.parsed()  # as it will be read again
    return document


def parse_pipeline_documents(place: str, text: str) -> list[PipelineDocument]:
    """Parses a whole pipelines file."""
    documents = [PipelineDocument(name, content) for name, content in pipeline_contents(place, text).items()]
    for document in documents:
        document.parsed()
    return documents


def format_pipeline(document: PipelineDocument, indent: str = "") -> str:
    """Formats as YAML that ``parse_pipeline_document`` takes, in the order in which it was written."""
    return "".join(f"{indent}{_key(key)}: {_format(value, indent)}\n" for key, value in document.content.items())


def _key(key: str) -> str:
    """Quotes an unknown key, so that it is refused as one and not read as several."""
    return key if key.replace("-", "").isalnum() else orjson.dumps(key).decode()


def _format(value: object, indent: str) -> str:
    """Formats as JSON in one line, except a text of several lines that YAML can contain unchanged."""
    if not isinstance(value, str) or "\n" not in value or not _is_plain(value):
        return "".join(map(_escaped, orjson.dumps(value).decode()))
    text = value.removesuffix("\n")
    lines = "".join(f"\n{indent}  {line}" if line else "\n" for line in text.split("\n"))
    return f"{'|' if text != value else '|-'}{lines}"


def _escaped(character: str) -> str:
    """JSON takes some characters as they are that YAML does not."""
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _is_plain(text: str) -> bool:
    """Returns whether a block of YAML keeps every character of it."""
    lines = text.removesuffix("\n").split("\n")
    is_kept = all(line.isprintable() and (not line or line.strip()) for line in lines)
    return is_kept and bool(lines[0]) and not lines[0][0].isspace() and bool(lines[-1])


def _check(pipeline: Pipeline) -> None:
    try:
        GroupNames(pipeline.name)
    except UsageError as error:
        raise UsageError(f"pipeline {pipeline.name!r} has no valid name for a document", error.remedy) from None
    for key, named in (("source", pipeline.source), ("sink", pipeline.sink)):
        if not named:
            raise UsageError(
                f"pipeline '{pipeline.name}' names no {key}", f"write '{key}: …', with one of those that the administrator allows"
            )

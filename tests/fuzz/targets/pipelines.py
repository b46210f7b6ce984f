"""SQL pipelines: the file, and one as a document of the server, which is written out and read again."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.console.pipelines.pipeline_document import (
    PipelineDocument,
    format_pipeline,
    parse_pipeline_document,
    parse_pipeline_documents,
)
from pgsluice.shared.broker.record import decode, encode
from pgsluice.shared.errors import UsageError
from tests.fuzz.target import is_same, read
from tests.fuzz.yaml_texts import examples, text_of


def feed(data: bytes) -> None:
    text = text_of(data)
    if text is None:
        return
    document = read(lambda: parse_pipeline_document("the request", text, "films"), UsageError)
    documents = read(lambda: parse_pipeline_documents("pipelines.yaml", text), UsageError) or []
    for each in documents if document is None else [document, *documents]:
        is_same(each.content, parse_pipeline_document("again", format_pipeline(each), each.name).content)
        is_same(each, decode(PipelineDocument, encode(each)))


def seeds() -> Iterator[bytes]:
    yield from examples("pipelines:", "query:")
    whole = "query: SELECT 1 AS id\ntarget: a.b\nkey: [id]\nsource: s\nsink: t\n"
    for more in (
        "schedule: '*/5 * * * *'\ntime-zone: Europe/Berlin\noverlap-policy: queue\n",
        "every: 15m\nbatch-rows: 1000\ntasks: 4\nretries: 3\nstatement-timeout: 10m\nmax-dead-letters: 7\n",
        "mode: incremental\nincremental-key: updated_at\nincremental-id-key: [id]\noverlap: 10m\nnulls: skip\n",
        "write: merge\ndeletes: {reconcile: 24h}\n",
        "deletes: {column: deleted_at}\nsteps:\n  - {sql: SELECT * FROM rows}\n  - {python: 'a.b:c', with: {n: 1, t: [true]}}\n",
        "write: replace\ngroup: films\n",
    ):
        yield f"{whole}{more}".encode()
        listed = "".join(f"    {line}\n" for line in f"{whole}{more}".splitlines())
        yield f"pipelines:\n  films:\n{listed}".encode()

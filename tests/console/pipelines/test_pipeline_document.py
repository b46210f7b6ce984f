"""A pipeline's document says what its file would say, and is read strictly wherever it came from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.console.pipelines.pipeline_document import (
    PipelineDocument,
    format_pipeline,
    parse_pipeline_document,
    parse_pipeline_documents,
)
from pgsluice.console.pipelines.pipelines_file import parse_pipelines
from pgsluice.shared.errors import UsageError

YAML = """\
query: |
  SELECT f.id, f.title   -- a film
    FROM film f

   WHERE f.title <> 'a: "b"'
target: analytics.film
key: [id]
batch-rows: 10
source: shop
sink: warehouse
steps:
  - {python: "marts.ratings:clean", with: {round: 2, unit: "2"}}
"""


def test_it_is_kept_as_it_was_written() -> None:
    document = parse_pipeline_document("the body", YAML, "films")
    text = format_pipeline(document)
    assert "  SELECT f.id, f.title   -- a film\n    FROM film f\n\n   WHERE" in text
    assert parse_pipeline_document("the body", text, "films") == document
    [listed] = parse_pipelines("file", "pipelines:\n  films:\n" + "".join(f"    {line}\n" for line in YAML.splitlines())).values()
    assert document.parsed() == listed


@given(st.text(min_size=1))
def test_every_query_that_can_be_kept_is_read_as_it_was(query: str) -> None:
    content = {"query": query, "target": "t", "key": ["id"], "source": "shop", "sink": "warehouse"}
    try:
        document = PipelineDocument("films", content)
        read = parse_pipeline_document("it", format_pipeline(document), "films")
    except UsageError:
        assert not query.strip().removesuffix(";").strip()
        return
    assert read.content == content


def test_several_are_read_out_of_a_file() -> None:
    described = "".join(f"    {line}\n" for line in YAML.splitlines())
    documents = parse_pipeline_documents("file", f"pipelines:\n  films:\n{described}  others:\n{described}")
    assert [document.name for document in documents] == ["films", "others"]
    assert documents[0].content == parse_pipeline_document("body", YAML, "films").content


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("host: db.example.com", r"body:1: pipeline 'films': unknown key 'host'"),
        ("target-url: postgres://u:p@h/d", "unknown key 'target-url'"),
        ("config: /etc/passwd", "unknown key 'config'"),
        ("password: hunter2", "unknown key 'password'"),
    ],
)
def test_there_is_no_key_for_hosts_and_secrets(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_pipeline_document("body", f"{line}\n{YAML}", "films")
    assert "hunter2" not in str(caught.value)
    assert "u:p@h" not in str(caught.value)


@pytest.mark.parametrize("key", ["source", "sink"])
def test_it_names_both_places(key: str) -> None:
    without = "".join(line for line in YAML.splitlines(keepends=True) if not line.startswith(key))
    with pytest.raises(UsageError, match=f"names no {key}"):
        parse_pipeline_document("body", without, "films")


def test_a_key_that_holds_yaml_is_no_way_around() -> None:
    content = {"query": "SELECT 1 AS id", "target": "t", "key": ["id"], "source: shop\nsink": "warehouse"}
    with pytest.raises(UsageError, match="unknown key"):
        PipelineDocument("films", content).parsed()


@pytest.mark.parametrize("name", ["Films", "a.b", "", "films>", "x" * 41])
def test_its_name_can_be_a_key_and_a_group(name: str) -> None:
    with pytest.raises(UsageError, match=r"no valid name|not a valid name"):
        parse_pipeline_document("body", YAML, name)

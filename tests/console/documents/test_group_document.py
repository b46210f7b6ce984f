"""What a document may hold: everything a configuration file may, but no secret that is written out."""

from __future__ import annotations

import re

import pytest

from pgsluice.console.documents.group_document import format_document, parse_document
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.errors import UsageError
from tests.configuration import BY_NAME, OPTIONS
from tests.source_code import REPOSITORY

MARKER = "m4rk3r-of-a-secret"
SECRETS = [option for option in OPTIONS if option.secret]


def parsed(text: str) -> str:
    return format_document(parse_document("given", text, BY_NAME))


def test_a_configuration_file_is_a_document() -> None:
    text = """
    group: orders
    tables: [customers, sales.*]
    copy-and-stream: true
    password: ${SOURCE_PASSWORD}
    nats-url: nats://localhost:4222
    spark: {master: "local[2]"}
    webhook-headers: {Authorization: "Bearer ${TOKEN}"}
    # a remark
    """
    once = parsed(text)
    assert once.splitlines()[0] == 'group: "orders"'
    assert 'tables: ["customers","sales.*"]' in once
    assert parsed(once) == once


def test_the_example_of_all_options_is_a_document() -> None:
    example = (REPOSITORY / "config.example.yaml").read_text()
    assert 'group: "orders"' in parsed(example)


@pytest.mark.parametrize(
    ("workers", "problem"),
    [
        ("[a b=file]", "worker name 'a b' is not valid"),
        ("['x.>=file']", "worker name 'x.>' is not valid"),
        ("[=file]", "worker name '' is not valid"),
        ("[lake=fil]", "workers names the sink 'fil'"),
        ("[package.module:Class]", "worker name 'package.module:Class' is not valid"),
        ("[file, lake=webhook, file]", "workers names 'file' twice"),
    ],
)
def test_workers_that_could_never_run_are_refused(workers: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        parsed(f"group: g\nworkers: {workers}\n")
    assert parsed("group: g\nworkers: [postgres, lake=file, own=package.module:Class]\n")


@pytest.mark.parametrize("option", SECRETS, ids=lambda option: option.name)
def test_no_secret_is_taken_that_is_written_out_nor_repeated(option: Option) -> None:
    match option.kind:
        case Kind.PAIRS:
            written = f"{{X-Any: {MARKER}}}"
        case Kind.SERVERS:
            written = f"nats://user:{MARKER}@localhost:4222"
        case Kind.URL:
            written = f"https://hooks.example.com/{MARKER}"
        case _:
            written = MARKER
    with pytest.raises(UsageError) as refused:
        parsed(f"group: g\n{option.name}: {written}\n")
    assert option.name in refused.value.fact
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        "spark: {spark.hadoop.fs.s3a.secret.key: m4rk3r-of-a-secret}",
        "nats-url: nats://m4rk3r-of-a-secret@localhost:4222",
        "nats-url: [nats://a, nats://u:m4rk3r-of-a-secret@b]",
        "password: ${NAME:-m4rk3r-of-a-secret}",
        "password: before ${NAME} m4rk3r-of-a-secret",
        "webhook-headers: {Authorization: Bearer m4rk3r-of-a-secret}",
    ],
    ids=str,
)
def test_what_looks_like_a_secret_counts_as_one(line: str) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(f"group: g\n{line}\n")
    assert "holds a secret that is written out" in refused.value.fact
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tables: [a]", "names no group"),
        ("group: [a]", "names no group"),
        ("group: Not A Name", "is not a valid name"),
        ("group: g\ntabels: [a]", "unknown key 'tabels'"),
        ("group: g\ngroup: h", "occurs twice"),
        ("group: {", "not valid YAML"),
        ("- a", "not a mapping"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_wrong_is_said(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parsed(text)

"""What a document may come to: whoever wrote it need not be trusted with the process that reads it."""

from __future__ import annotations

import tracemalloc

import pytest
import yaml

from pgsluice.rules.document import open_document
from pgsluice.shared.config import yaml_nodes
from pgsluice.shared.config.file import parse_config_file
from pgsluice.shared.config.yaml_nodes import InvalidYamlError, compose, is_null, is_plain, line_of
from pgsluice.shared.errors import UsageError
from tests.source_code import REPOSITORY

NINE = range(9)


def aliases_of_aliases(depth: int) -> str:
    """Nine to the power of ``depth`` texts."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' for _ in NINE)}]" for n in range(1, depth)]
    return "\n".join(lines)


def merges_of_merges(depth: int) -> str:
    """As many pairs, each with a name of its own where releases of PyYAML merge a pair once."""
    lines = ["a0: &a0 {k: x}"]
    lines += [f"a{n}: &a{n} {{k{n}: y, <<: [{', '.join(f'*a{n - 1}' for _ in NINE)}]}}" for n in range(1, depth)]
    return "\n".join(lines)


def chain_of_aliases(length: int) -> str:
    """As deep as it is long, though no line is."""
    return "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, length))])


MANY_LONG_TEXTS = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]"


@pytest.mark.parametrize("text", [aliases_of_aliases(20), merges_of_merges(20), MANY_LONG_TEXTS])
def test_what_aliases_stand_for_is_bounded(text: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidYamlError, match="aliases expand to more than 64 MiB") as raised:
        compose(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert raised.value.line is not None
    assert most < 5_000_000


@pytest.mark.parametrize(
    "text",
    ["a: " + "[" * 5000 + "]" * 5000, "".join(f"{' ' * n}k:\n" for n in range(1500)), chain_of_aliases(1500)],
    ids=["lists", "mappings", "aliases"],
)
def test_a_document_that_is_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(InvalidYamlError, match="is nested more than 100 levels deep") as raised:
        compose(text)
    assert raised.value.line is not None


@pytest.mark.parametrize("text", ["a: " + "[" * 98 + "]" * 98, chain_of_aliases(98)])
def test_what_is_nested_less_is_read_as_ever(text: str) -> None:
    root, _ = open_document("f.yaml", "rules file", text)
    assert root.digest()


def test_a_block_that_thousands_of_tables_share_is_read() -> None:
    block = "&b {" + ", ".join(f"column_{n}: [{{type: mask, keep_first: {n}}}]" for n in range(20)) + "}"
    text = f"t0: {block}\n" + "\n".join(f"t{n}: *b" for n in range(1, 2000))
    root, _ = open_document("f.yaml", "rules file", text)
    assert len(root.keys()) == 2000


def test_each_reader_says_where_it_is() -> None:
    with pytest.raises(UsageError, match=r"^f\.yaml:\d+: not valid YAML: aliases expand to"):
        open_document("f.yaml", "rules file", aliases_of_aliases(20))
    with pytest.raises(UsageError, match=r"^f\.yaml, line \d+, column \d+: not valid YAML: aliases expand to"):
        parse_config_file("f.yaml", aliases_of_aliases(20))


def said(node: yaml.Node) -> object:
    """What is read of a node, whichever parser made it."""
    match node:
        case yaml.MappingNode():
            return [(said(key), said(value)) for key, value in node.value]
        case yaml.SequenceNode():
            return [said(item) for item in node.value]
        case yaml.ScalarNode():
            return node.value, is_plain(node), is_null(node), line_of(node)
    raise AssertionError(node)


@pytest.mark.parametrize(
    "text",
    [
        (REPOSITORY / "config.example.yaml").read_text(),
        "a: 1\nb: '1'\nc: \"\\u00e4\\n\"\nd: |\n  x\n\n  y\ne: >-\n  x\n  y\nf:\ng: ~\nh: 'null'\n",
        "base: &b {x: 1, y: [1, two]}\nother:\n  <<: *b\n  y: ä\n? z\n: - {}\n  - []\n",
        "\ufeffa: b # remark\r\n\r\nc: d\r\n",
        "a: no\nb: 0123\nc: 2026-01-31\nd: !!str 1\ne: ${X:-y}\nf: 'it''s'\n",
    ],
)
def test_libyaml_and_pyyamls_own_parser_read_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation may lack LibYAML."""
    by_libyaml = compose(text)
    monkeypatch.setattr(yaml_nodes, "_Loader", yaml.SafeLoader)
    by_pyyaml = compose(text)
    assert by_libyaml.root is not None
    assert by_pyyaml.root is not None
    assert said(by_libyaml.root) == said(by_pyyaml.root)
    assert len(by_libyaml.repeated) == len(by_pyyaml.repeated)

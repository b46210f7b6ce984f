"""The program's help, its texts, the comments of the example configuration and the code's own prose, held to plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import click
import pytest
import yaml

from pgsluice.console.flags import known_options
from pgsluice.console.program import program
from tests.code_words import fragments, read_code, repeated_classes
from tests.commands import commands
from tests.literal_texts import prose_of_source
from tests.misses import no_misses
from tests.source_code import PRODUCT, REPOSITORY, relative, sources
from tests.words import MOST_HABITS, read

_KEY = re.compile(r"(?:#? *)[a-z][\w.* -]*:(?= |$)")
"""What a line of the example begins with that shows a key, in use or not."""

_TEMPLATE = re.compile(r"\{\{.*?\}\}")

FEWEST = 500
"""Words of each kind of texts: with fewer, they were not found."""

_COMMENT = re.compile(r"(?:^|\s)#\s+(.*)$")


def _help_texts() -> Iterator[tuple[str, str]]:
    """A name and a text, among them the list of commands that the program shows."""
    yield "pgsluice --help", program.get_help(click.Context(program))
    for option in known_options():
        yield option.flag, option.help
    for path, command in commands().items():
        name = f"pgsluice {path}".rstrip()
        yield name, command.help or ""
        yield f"{name} (summary)", command.get_short_help_str(limit=1000)
        for parameter in command.params:
            yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""


def _comments() -> Iterator[tuple[str, str]]:
    for number, line in enumerate((REPOSITORY / "config.example.yaml").read_text().splitlines(), 1):
        key = _KEY.match(line)
        if comment := _COMMENT.search(line[key.end() :] if key else line):
            yield f"config.example.yaml:{number}", comment[1]


def _literals() -> Iterator[tuple[str, str]]:
    """Alerts, findings, errors, log messages, summaries of the API, and all else that the program says from its source."""
    for path in sources(*PRODUCT):
        for line, text in prose_of_source(path):
            yield f"{relative(path)}:{line}", text


def _monitoring() -> Iterator[tuple[str, str]]:
    """Alerts of Prometheus and the dashboard's titles. Their templates are code."""
    for group in yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            for kind in ("summary", "description"):
                yield f"alerts.yaml: {rule['alert']}", _TEMPLATE.sub("`value`", rule["annotations"][kind])
    for text in re.findall(r'"(?:title|description)": "(.+)"', (REPOSITORY / "deploy/grafana/pgsluice.json").read_text()):
        yield "deploy/grafana/pgsluice.json", text


def _named_once(texts: Iterator[tuple[str, str]]) -> Mapping[str, str]:
    """Text → the first that has it: options that many commands read would weigh most otherwise."""
    names: dict[str, str] = {}
    for name, text in texts:
        names.setdefault(text, name)
    return names


@pytest.mark.parametrize(
    "texts", [_help_texts, _comments, _literals, _monitoring], ids=["help", "example", "source", "monitoring"]
)
def test_texts_have_no_banned_phrase_and_few_habits(texts: Callable[[], Iterator[tuple[str, str]]]) -> None:
    names = _named_once(texts())
    whole = read("\n\n".join(names))
    found = (f"{name}: {kind}\n    {text}" for text, name in names.items() for _, kind in read(text).found)
    no_misses(
        () if whole.is_plain else found, "banned phrases or too many habits: tests/words.py names words to write in their place"
    )
    assert whole.words > FEWEST


@pytest.mark.parametrize("package", [*PRODUCT, "tools"])
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    found = (f"{each.place}: {each.text.splitlines()[0]}" for each in fragments(package))
    no_misses(found, "docstrings that only the signature completes: say what it returns, does or is, or delete them")


@pytest.mark.parametrize("package", PRODUCT)
def test_docstrings_and_comments_have_few_habits(package: str) -> None:
    reading = read_code(package)
    no_misses(
        reading.found if reading.habits_per_thousand > MOST_HABITS else (),
        f"more than {MOST_HABITS:.0f} habit words per 1,000: tests/words.py names words to write in their place",
    )
    assert reading.words > 1000


def test_no_two_classes_of_the_product_have_one_name() -> None:
    repeated = (f"{name}: {', '.join(places)}" for name, places in repeated_classes().items())
    no_misses(repeated, "one name for two classes: qualify one of them")

"""The documents for people: the generated pages are complete, the site is whole, and what is named exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import click
import pytest

from pgsluice.console.flags import settings_by_command
from pgsluice.console.program import program
from tests.configuration import OPTIONS
from tests.test_scenarios import defined_tests

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
AT_ROOT = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
BY_HAND = [*AT_ROOT, *(path for path in sorted(DOCS.rglob("*.md")) if path.name != "benchmarks.md")]

LONGEST_README, LONGEST_LINE = 250, 120

_FOLDERS = "shared|replicator|rules|worker|console|tests|benchmarks|docker|deploy|docs|pgsluice"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+|[\w.-]+\.(?:md|yaml|yml|toml))`")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
_CODE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)

OF_THE_READER = {"pgsluice.yaml", "rules.yml", "routing.yml"}
"""Files that pages have the reader write."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


def test_the_page_of_options_has_each_option_with_its_help_and_its_default(generator: ModuleType) -> None:
    lines = generator.options_page().splitlines()
    for option in OPTIONS:
        (row,) = [line for line in lines if line.startswith(f"| `{option.name}`{{")]
        assert option.help.replace("|", "\\|") in row
        assert not option.default or f"`{option.default}`" in row
        assert not option.example or f"`{option.example}`".replace("|", "\\|") in row
        assert option.allowed.replace("|", "\\|") in row


def test_the_page_of_options_names_every_command_that_reads_one(generator: ModuleType) -> None:
    page = generator.options_page()
    assert set(settings_by_command()) <= set(re.findall(r"`([^`]+)`", page))


def test_what_every_worker_reads_is_not_said_of_each_sink_again(generator: ModuleType) -> None:
    readers = generator.readers_of_options()
    assert "worker" in readers["nats-url"]
    assert [command for command in readers["nats-url"] if command.startswith("worker ")] == []
    assert readers["target-sync-schema"] == ("worker postgres",)


def commands(group: click.Group, path: str) -> list[str]:
    context = click.Context(group)
    found = [path]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found += commands(command, f"{path} {name}") if isinstance(command, click.Group) else [f"{path} {name}"]
    return found


def test_the_page_of_commands_has_every_command_with_its_whole_help(generator: ModuleType) -> None:
    sections = re.findall(r"^## (pgsluice.*)\n\n```text\nUsage: (\S.*)", generator.commands_page(), re.MULTILINE)
    assert [name for name, _ in sections] == commands(program, "pgsluice")
    assert all(usage.startswith(name + " ") or usage == name for name, usage in sections)


def test_help_on_the_page_lists_the_options_of_the_command(generator: ModuleType) -> None:
    section = generator.commands_page().partition("\n## pgsluice worker file\n")[2].partition("\n## ")[0]
    assert re.search(r"--file-output-dir \S+ +\S", section)
    assert re.search(r"--nats-url URL,URL +\S", section)


def test_the_page_of_messages_has_the_specification_of_each_stream(generator: ModuleType) -> None:
    page = generator.wire_page()
    for header in ("Pgsluice-Anchor", "Pgsluice-Range-End", "Pgsluice-Dead-Letter"):
        assert header in page
    objects = re.findall(r"^\| .* \| `(.*)` \|$", page, re.MULTILINE)
    assert objects == ["pgsluice_orders_changes", "pgsluice_orders_snapshot", "pgsluice_orders_dead", "pgsluice_orders"]


def test_docstrings_stand_on_pages_as_they_read_without_their_marks(generator: ModuleType) -> None:
    for page in (generator.api_page(), generator.wire_page()):
        assert "``" not in page.replace("```", "")


def test_the_site_is_built_and_has_every_page(site: Path) -> None:
    written = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    generated = {Path("reference") / name for name in ("options.html", "commands.html", "wire.html", "api.html")}
    assert {path for path in written | generated if not (site / path).is_file()} == set()
    assert not list(site.rglob("*.py"))


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text()
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"([^\"]+)\"", html)
        assert loaded
        assert [url for url in loaded if re.match(r"(?:[a-z]+:)?//", url)] == [], page
    for sheet in site.rglob("*.css"):
        assert "url(" not in sheet.read_text()
        assert "@import" not in sheet.read_text()


def test_wide_tables_scroll_by_themselves(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text()
        assert html.count("<table>") == html.count('<div class="table"><table>') == html.count("</table></div>"), page
    assert "<table>" in (site / "reference" / "options.html").read_text()


def test_code_has_colours_on_light_and_on_dark(site: Path) -> None:
    light, _, dark = (site / "code.css").read_text().partition("@media (prefers-color-scheme: dark)")
    assert ".highlight .k " in light
    assert ".highlight .k " in dark
    assert re.findall(r"background(?:-color)?: #", light + dark) == [], "that is the template's"


def of_each_document(find: Callable[[Path], Iterable[object]]) -> dict[str, list[object]]:
    """What ``find`` finds, by document; nothing of one where it finds nothing."""
    found = {str(path.relative_to(REPOSITORY)): list(find(path)) for path in BY_HAND}
    return {path: things for path, things in found.items() if things}


def test_every_file_that_a_document_names_exists() -> None:
    def missing(path: Path) -> set[str]:
        named = set(_FILE.findall(path.read_text())) - OF_THE_READER
        return {name for name in named if not any((place / name).exists() for place in (REPOSITORY, path.parent))}

    assert of_each_document(missing) == {}


def test_every_test_that_a_document_names_exists() -> None:
    def missing(path: Path) -> list[str]:
        return [name for file, name in _TEST.findall(path.read_text()) if name not in defined_tests(file)]

    assert of_each_document(missing) == {}


def test_every_link_of_a_document_leads_to_a_file(generator: ModuleType) -> None:
    generated = {(DOCS / name).resolve() for name in generator.pages()}

    def missing(path: Path) -> set[Path]:
        targets = {(path.parent / link).resolve() for link in _LINK.findall(_CODE.sub("", path.read_text()))}
        return {target for target in targets if not target.exists() and target not in generated}

    assert of_each_document(missing) == {}


@pytest.mark.parametrize("path", AT_ROOT, ids=lambda path: path.name)
def test_a_document_that_is_read_without_the_site_links_to_no_page_that_only_the_site_has(path: Path) -> None:
    links = _LINK.findall(path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_lines_of_prose_fit_a_screen() -> None:
    def too_long(path: Path) -> list[str]:
        prose = _CODE.sub("", path.read_text())
        return [line for line in prose.splitlines() if len(line) > LONGEST_LINE and not line.startswith("|")]

    assert of_each_document(too_long) == {}


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= LONGEST_README

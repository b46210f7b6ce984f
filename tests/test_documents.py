"""The documents for people: the generated pages are complete, the site is whole, and what is named exists."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from pgsluice.console.flags import settings_by_command
from pgsluice.console.schemas.generating import api_description
from pgsluice.shared.wire.names import GroupNames
from tests.commands import commands
from tests.configuration import BY_NAME, OPTIONS
from tests.misses import no_misses
from tests.site_search import QUERIES, TITLE_WEIGHT, SiteSearch
from tests.source_code import REPOSITORY, sources
from tests.test_scenarios import defined_tests
from tests.words import FIELD_WORDS, MOST_HABITS, MOST_WHAT, prose_of, read

DOCS = REPOSITORY / "docs"
AT_ROOT = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(REPOSITORY / "deploy" / "helm" / "pgsluice").glob("*.md"),
    *(REPOSITORY / ".github").rglob("*.md"),
]
"""Documents that are read in the repository, and are not on the site."""
BY_HAND = [*AT_ROOT, *(path for path in sorted(DOCS.rglob("*.md")) if path.name != "benchmarks.md")]

LONGEST_README, LONGEST_LINE = 250, 120
FIRST_RESULTS = 3

_FOLDERS = "shared|replicator|rules|worker|console|testing|tests|benchmarks|docker|deploy|docs|pgsluice"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+|[\w.-]+\.(?:md|yaml|yml|toml))`")
_TEST = re.compile(r"`(test(?:s|ing)/[\w/]+\.py)::(test_\w+)`")
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
    build_site(directory, os.environ)
    assert "Edit this page" not in (directory / "index.html").read_text()
    return directory


def build_site(directory: Path, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr


def test_the_page_of_options_has_each_option_with_its_help_and_its_default(generator: ModuleType) -> None:
    found = re.findall(r"^\| `([\w-]+)`\{(.*)$", generator.options_page(), re.MULTILINE)
    rows = dict(found)
    no_misses(BY_NAME.keys() - rows.keys(), "not on the page that docs/generate.py makes of options")
    assert len(rows) == len(found), "an option is there twice"
    wanted = {
        option.name: (option.help, f"`{option.default}`" * bool(option.default), f"`{option.example}`", option.allowed)
        for option in OPTIONS
    }
    for name, texts in wanted.items():
        absent = (text for text in texts if text.replace("|", "\\|") not in rows[name])
        no_misses(absent, f"missing in the row of {name}")


def test_the_page_of_options_names_every_command_that_reads_one(generator: ModuleType) -> None:
    named = set(re.findall(r"`([^`]+)`", generator.options_page()))
    no_misses(settings_by_command().keys() - named, "a command that the page of options does not name")


def test_what_every_worker_reads_is_not_said_of_each_sink_again(generator: ModuleType) -> None:
    readers = generator.readers_of_options()
    assert "worker" in readers["nats-url"]
    assert [command for command in readers["nats-url"] if command.startswith("worker ")] == []
    assert readers["target-sync-schema"] == ("worker postgres",)


def test_the_page_of_commands_has_every_command_with_its_whole_help(generator: ModuleType) -> None:
    sections = re.findall(r"^## (pgsluice.*)\n\n```text\nUsage: (\S.*)", generator.commands_page(), re.MULTILINE)
    called = [f"pgsluice {command}".strip() for command in commands()]
    no_misses(set(called) ^ {name for name, _ in sections}, "a command without a section, or a section without a command")
    assert [name for name, _ in sections] == called
    unlike = (name for name, usage in sections if not usage.startswith(name + " ") and usage != name)
    no_misses(unlike, "its section shows the usage of another command")


def test_help_on_the_page_lists_the_options_of_the_command(generator: ModuleType) -> None:
    section = generator.commands_page().partition("\n## pgsluice worker file\n")[2].partition("\n## ")[0]
    assert re.search(r"--file-output-dir \S+ +\S", section)
    assert re.search(r"--nats-url URL,URL +\S", section)


def test_the_page_of_messages_has_the_specification_of_each_stream(generator: ModuleType) -> None:
    page, names = generator.wire_page(), GroupNames("orders")
    headers = {
        header
        for path in sources("shared/wire")
        for header in re.findall(r'^\w+_HEADER = "([^"]+)"', path.read_text(), re.MULTILINE)
    }
    assert headers
    no_misses(headers - set(re.findall(r"[\w-]+", page)), "describe the header in the docstring of its module")
    kept = {getattr(names, name) for name in dir(names) if name.endswith("_stream") or name == "bucket"}
    objects = set(re.findall(r"^\| .* \| `(.*)` \|$", page, re.MULTILINE))
    no_misses(kept ^ objects, "an object of a group that docs/generate.py does not list, or one that there is not")


def test_the_page_of_the_rest_api_has_every_operation_and_every_type(generator: ModuleType) -> None:
    description = api_description()
    page = generator.rest_page(description)
    shown = re.findall(r"^`([A-Z]+) (/\S+)`$", page, re.MULTILINE)
    wanted = [(verb.upper(), path) for path, operations in description["paths"].items() for verb in operations]
    assert sorted(shown) == sorted(wanted)
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    no_misses({name.lower() for name in description["components"]["schemas"]} - headings, "a type without a section")
    no_misses(set(re.findall(r"\]\(#(\w+)\)", page)) - headings, "a link to a type without a section")


def test_docstrings_stand_on_pages_as_they_read_without_their_marks(generator: ModuleType) -> None:
    for page in (generator.api_page(), generator.wire_page()):
        assert "``" not in page.replace("```", "")


def test_the_site_is_built_and_has_every_page(generator: ModuleType, site: Path) -> None:
    pages = {*(path.relative_to(DOCS) for path in DOCS.rglob("*.md")), *map(Path, generator.pages())}
    absent = (page for page in pages if not (site / page.with_suffix(".html")).is_file())
    no_misses(absent, "not on the site: name it in mkdocs.yml")
    no_misses((name for name in generator.schemas() if not (site / name).is_file()), "not on the site")
    assert not list(site.rglob("*.py"))


def test_the_list_of_pages_for_language_models_has_every_page_with_a_sentence(site: Path) -> None:
    lines = [line for line in (site / "llms.txt").read_text().splitlines() if line.startswith("- ")]
    entries = [re.fullmatch(r"- \[([^]]+)\]\((\S+)\): (\S.{15,})", line) for line in lines]
    no_misses((line for line, entry in zip(lines, entries, strict=True) if entry is None), "no title, address or first sentence")
    listed = {entry[2] for entry in entries if entry is not None}
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html", "search.html"}
    no_misses(listed ^ built, "a page that llms.txt lacks, or one that there is not")


def test_pages_link_to_their_source_where_the_repository_is_known(tmp_path: Path) -> None:
    environment = os.environ | {
        "DOCS_REPOSITORY_URL": "https://git.example.com/pgsluice",
        "DOCS_SITE_URL": "https://docs.example.com/",
    }
    build_site(tmp_path, environment)
    link = "https://git.example.com/pgsluice/edit/main/docs/how-to/up.md"
    assert f'<a href="{link}">Edit this page</a>' in (tmp_path / "how-to" / "up.html").read_text()
    assert "Edit this page" not in (tmp_path / "reference" / "options.html").read_text(), "it is generated"
    assert "](https://docs.example.com/how-to/up.html): " in (tmp_path / "llms.txt").read_text()


def test_the_chart_s_readme_names_every_value() -> None:
    chart = REPOSITORY / "deploy" / "helm" / "pgsluice"
    named = set(re.findall(r"`(\w+)`", (chart / "README.md").read_text()))
    no_misses(yaml.safe_load((chart / "values.yaml").read_text()).keys() - named, "a value that the chart's README does not name")


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text()
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"([^\"]+)\"", html)
        assert loaded
        assert [url for url in loaded if re.match(r"(?:[a-z]+:)?//", url)] == [], page
    for sheet in site.rglob("*.css"):
        assert "url(" not in sheet.read_text()
        assert "@import" not in sheet.read_text()


def test_the_search_finds_pages_by_the_words_of_the_field(site: Path) -> None:
    search = SiteSearch(site)
    no_misses(set().union(*QUERIES.values()) - search.titles.keys(), "wanted by a query, and not on the site")
    found = {query: search.pages(query)[:FIRST_RESULTS] for query in QUERIES}
    lost = [query for query, wanted in QUERIES.items() if wanted.isdisjoint(found[query])]
    misses = (f"{query!r} finds {', '.join(found[query])}" for query in lost)
    no_misses(misses, "give the page that answers it the words of the query, in its title or a heading")


def test_the_search_weighs_titles_as_its_test_does(site: Path) -> None:
    assert f"const TITLE_WEIGHT = {TITLE_WEIGHT};" in (site / "search" / "worker.js").read_text()


def test_the_search_names_the_page_of_each_section_that_it_finds(generator: ModuleType, site: Path) -> None:
    search = SiteSearch(site)
    assert search.titles["reference/limits"] == "Limits"
    assert "TLS · Poolers, networks and TLS" in search.section_titles
    docs = [{"location": "a.html", "title": "A"}, {"location": "a.html#a", "title": "A"}, {"location": "a.html#b", "title": "B"}]
    assert [doc["title"] for doc in generator.with_page_titles({"docs": docs})["docs"]] == ["A", "A", "B · A"]


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


def of_each_document(find: Callable[[Path], Iterable[object]]) -> Iterator[str]:
    """What ``find`` finds, each with the document."""
    return (f"{path.relative_to(REPOSITORY)}: {found}" for path in BY_HAND for found in find(path))


def test_every_file_that_a_document_names_exists() -> None:
    def missing(path: Path) -> set[str]:
        named = set(_FILE.findall(path.read_text())) - OF_THE_READER
        return {name for name in named if not any((place / name).exists() for place in (REPOSITORY, path.parent))}

    no_misses(of_each_document(missing), "named in a document, and not there: name its heir")


def test_every_test_that_a_document_names_exists() -> None:
    def missing(path: Path) -> list[str]:
        return [name for file, name in _TEST.findall(path.read_text()) if name not in defined_tests(file)]

    no_misses(of_each_document(missing), "named in a document, and not there: name its heir")


def test_every_link_of_a_document_leads_to_a_file(generator: ModuleType) -> None:
    generated = {(DOCS / name).resolve() for name in generator.pages() | generator.schemas()}

    def missing(path: Path) -> set[Path]:
        targets = {(path.parent / link).resolve() for link in _LINK.findall(_CODE.sub("", path.read_text()))}
        return {target for target in targets if not target.exists() and target not in generated}

    no_misses(of_each_document(missing), "no file is where the link leads")


def test_a_document_that_is_read_without_the_site_links_to_no_page_that_only_the_site_has() -> None:
    lost = (
        f"{path.name}: {link}"
        for path in AT_ROOT
        for link in _LINK.findall(path.read_text())
        if not (path.parent / link).exists()
    )
    no_misses(lost, "no such file: readers of the repository follow it too")


def test_lines_of_prose_fit_a_screen() -> None:
    def too_long(path: Path) -> list[str]:
        prose = _CODE.sub("", path.read_text())
        return [line for line in prose.splitlines() if len(line) > LONGEST_LINE and not line.startswith("|")]

    no_misses(of_each_document(too_long), f"longer than {LONGEST_LINE} characters")


def test_pages_are_written_in_plain_words() -> None:
    """``python -m tests.words PAGE`` shows each word that counts."""
    pages = [*AT_ROOT, REPOSITORY / "ARCHITECTURE.md", *DOCS.rglob("*.md")]
    no_misses(
        (str(path.relative_to(REPOSITORY)) for path in pages if not read(path.read_text()).is_plain),
        f"a banned phrase, more than {MOST_HABITS:g} habits or more than {MOST_WHAT:g} 'what' in a thousand words",
    )


def test_the_words_that_readers_search_for_are_found() -> None:
    together = " ".join(prose_of(path.read_text()) for path in DOCS.rglob("*.md")).lower()
    flat = re.sub(r"\s+", " ", together)
    no_misses((word for word in FIELD_WORDS if word.lower() not in flat), "a word of the field that no page has")


def test_no_text_has_pgsluice_installed_from_an_index() -> None:
    """It is on none: whoever takes the name there would run code where a reader follows such a line."""
    texts = [*BY_HAND, *(path for room in ("shared", "worker", "replicator", "console", "testing") for path in sources(room))]
    found = (
        str(path.relative_to(REPOSITORY)) for path in texts if re.search(r"pip install [^\n`]*\bpgsluice\b", path.read_text())
    )
    no_misses(found, "names a package of an index that is not ours: name a clone, a wheel, or the library that is needed")


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= LONGEST_README

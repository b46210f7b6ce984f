"""The pages of the reference that follow from the program: options, commands, metrics, messages in the streams, both APIs.

The schemas stand beside them as files.

mkdocs calls the functions ``on_…`` (``hooks`` in mkdocs.yml). The pages exist in the built site only, so they cannot go stale.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from pygments.formatters import HtmlFormatter

import pgsluice
from pgsluice import testing
from pgsluice.console.flags import known_options, settings_by_command, whole_help
from pgsluice.console.program import program
from pgsluice.console.schemas.generating import api_description
from pgsluice.console.server.endpoint_table import PREFIX
from pgsluice.shared.config import options_of
from pgsluice.shared.config.option import Option
from pgsluice.shared.metrics.declared_metrics import METRICS
from pgsluice.shared.metrics.metric import Metric, Shown
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.sinks.lines.schemas.generating import DIRECTORY as SCHEMAS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

DOCS = Path(__file__).parent

_FEW = 3
"""More commands than that have no heading of their own."""

_CODE_STYLES = ("default", "github-dark")

_WIDTH = 88
"""Columns of a help text, which fit a page beside its two menus."""

_WIRES = {
    "The stream of changes": "pgsluice.shared.wire.message",
    "The stream of copied rows": "pgsluice.shared.wire.snapshot_message",
    "The stream of dead letters": "pgsluice.shared.wire.dead_letter",
    "Definitions, in the source's write-ahead log": "pgsluice.shared.wire.definition",
    "Definitions, in the stream of changes": "pgsluice.shared.wire.published_definition",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links to a page's source need the repository's address."""
    config.edit_uri = "edit/main/docs/" if config.repo_url else ""
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    generated = pages()
    texts = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")} | generated
    others = {"code.css": code_colours(), "llms.txt": llms_text(config.nav or [], texts, config.site_url or "")}
    for path, content in (generated | schemas() | others).items():
        files.append(File.generated(config, path, content=content))
    return files


def llms_text(nav: Sequence[Any], texts: Mapping[str, str], site_url: str) -> str:
    """The list of pages for language models (llmstxt.org): each page's title, address and first sentence, by section."""
    lines = ["# pgsluice", "", f"> {_opening(texts['index.md'])}"]
    for section in nav:
        ((title, items),) = section.items()
        lines += ["", f"## {title}", ""]
        lines += [
            f"- [{_heading(texts[path])}]({site_url}{path.removesuffix('.md')}.html): {_opening(texts[path])}"
            for path in _paths(items)
        ]
    return "\n".join(lines) + "\n"


def _paths(items: Any) -> Iterator[str]:
    match items:
        case str():
            yield items
        case list():
            for item in items:
                yield from _paths(item)
        case dict():
            for item in items.values():
                yield from _paths(item)


def _heading(text: str) -> str:
    return text.lstrip().partition("\n")[0].removeprefix("# ")


def _opening(text: str) -> str:
    """The first sentence below the heading, in one line, without links."""
    paragraph = text.partition("\n\n")[2].strip().partition("\n\n")[0]
    flat = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.:]) (?=[A-Z`*])", flat)[0].removesuffix(":")


def on_page_content(html: str, **_: object) -> str:
    """A wide table scrolls by itself, not with its page."""
    return html.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")


def on_post_build(config: MkDocsConfig) -> None:
    """The search names the page of each section that it finds: ``Limits`` alone stands on many pages. By that it also finds
    first the sections of the page that is about what was asked."""
    path = Path(config.site_dir, "search", "search_index.json")
    path.write_text(json.dumps(with_page_titles(json.loads(path.read_text()))))


def with_page_titles(index: dict[str, Any]) -> dict[str, Any]:
    """Returns the index that mkdocs made, where the title of a section ends with that of its page."""
    titles = {doc["location"]: doc["title"] for doc in index["docs"]}

    def titled(doc: dict[str, str]) -> dict[str, str]:
        page, hash_sign, _ = doc["location"].partition("#")
        is_section = bool(hash_sign) and titles[page] != doc["title"]
        return doc | {"title": f"{doc['title']} · {titles[page]}"} if is_section else doc

    return index | {"docs": [titled(doc) for doc in index["docs"]]}


def code_colours() -> str:
    """The colours of code blocks, on light and on dark."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in _CODE_STYLES)
    return f"{_without_backgrounds(light)}\n@media (prefers-color-scheme: dark) {{\n{_without_backgrounds(dark)}\n}}\n"


def _without_backgrounds(styles: str) -> str:
    return re.sub(r" background(?:-color)?: #[0-9a-fA-F]{3,6};?", "", styles)


def pages() -> dict[str, str]:
    """Each generated page's text, by its path."""
    return {
        "reference/options.md": options_page(),
        "reference/metrics.md": metrics_page(),
        "reference/commands.md": commands_page(),
        "reference/wire.md": wire_page(),
        "reference/api.md": api_page(),
        "reference/rest-api.md": rest_page(api_description()),
    }


def schemas() -> dict[str, str]:
    """The schemas and types that the package holds, by their paths."""
    return {f"reference/schemas/{path.name}": path.read_text() for path in sorted(SCHEMAS.iterdir())}


# --- options ---------------------------------------------------------------------------------------------------------------

_OPTIONS_TITLE = """\
# Options

This page is made from the program's own declarations of options.

An option `nats-url` is the key `nats-url:` of the configuration file, the flag `--nats-url`, and the environment
variable `PGSLUICE_NATS_URL`. The flag wins over the variable, the variable over the file, the file over the default.
All commands share the keys: one file serves every process of a group, and each reads its own keys.
`config.example.yaml` in the repository holds every key.

| value | is written as |
|---|---|
| SIZE | a number with B, KB, MB, GB, TB (1000s) or KiB, MiB, GiB, TiB (1024s) |
| DURATION | `7d`, `24h`, `1h30m`, `45s` |
| NAME,NAME and URL,URL | a list: separated by commas, or as a YAML list |
| KEY=VALUE | a mapping in the file; the flag is repeated for each key; the variable takes a JSON object |
| HOST:PORT | an address to listen on, like `127.0.0.1:9464` or `[::1]:9464`; port 0 is any that is free |
| LSN | a place in the write-ahead log, like `16/B374D848` |

In the file, `${NAME}` stands for an environment variable, `${NAME:-text}` for the variable or, when it is unset or
empty, the text. Write `$${` for a plain `${`.
"""


def options_page() -> str:
    """A table for each set of commands that read the same options, in the order of the declarations; what many commands read
    comes first."""
    tables: dict[tuple[str, ...], list[Option]] = {}
    readers = readers_of_options()
    for option in known_options():
        tables.setdefault(readers[option.name], []).append(option)
    shared = [_options_table(commands, options) for commands, options in tables.items() if len(commands) > _FEW]
    single = [
        f"## {_title(commands)}\n\n{_options_table(commands, options)}"
        for commands, options in tables.items()
        if len(commands) <= _FEW
    ]
    return "\n".join([_OPTIONS_TITLE, "## Several commands\n", *shared, *single])


def readers_of_options() -> dict[str, tuple[str, ...]]:
    """Option → the commands that read it. What ``worker`` reads is not said of each sink again."""
    readers: dict[str, tuple[str, ...]] = {}
    for command, settings in settings_by_command().items():
        for option in options_of(settings):
            known = readers.get(option.name, ())
            if not (command.startswith("worker ") and "worker" in known):
                readers[option.name] = (*known, command)
    return readers


def _options_table(commands: tuple[str, ...], options: list[Option]) -> str:
    names = ", ".join(f"`{command}`" for command in commands)
    rows = "\n".join(_option_row(option) for option in options)
    return f"Read by {names}:\n\n| key | value | default | meaning |\n|---|---|---|---|\n{rows}\n"


def _title(commands: tuple[str, ...]) -> str:
    return " and ".join(", ".join(commands).rsplit(", ", 1))


def _option_row(option: Option) -> str:
    default = f"`{option.default}`" if option.default else ""
    example = f" Example: `{option.example}`." if option.example != option.default else ""
    cells = (f"`{option.name}`{{#{option.name}}}", _kind(option), default, f"{option.help}.{example}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(option: Option) -> str:
    return f"{option.kind.value}" + (f": {option.allowed}" if option.allowed else "")


# --- commands --------------------------------------------------------------------------------------------------------------

_COMMANDS_TITLE = """\
# Commands

This page is made from the program's own help texts. `pgsluice COMMAND --help-all` shows the same. [Exit
codes](exit-codes.md) and [options](options.md) have pages of their own.
"""


def commands_page() -> str:
    sections = (_command_section(path, context) for path, context in commands())
    return "\n".join([_COMMANDS_TITLE, *sections])


def commands() -> Iterator[tuple[str, click.Context]]:
    """Every command and group of the program by how it is called, each group before its commands."""
    yield from _below(click.Context(program, info_name="pgsluice", max_content_width=_WIDTH, terminal_width=_WIDTH))


def _below(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    yield context.command_path, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from _below(click.Context(command, info_name=name, parent=context))


def _command_section(path: str, context: click.Context) -> str:
    return f"## {path}\n\n```text\n{inspect.cleandoc(whole_help(context))}\n```\n"


# --- metrics ---------------------------------------------------------------------------------------------------------------

_METRICS_TITLE = """\
# Metrics and health

This page is made from the program's own declarations of metrics. [Monitor](../how-to/monitor.md) says how to
switch them on, and which of them matter.

Every metric has the label `group`, those of a worker `worker` too. A metric whose fact is not known is absent.
"""

_METRICS_OF = {
    Shown.BOTH: "Replicator and worker",
    Shown.REPLICATOR: "Replicator",
    Shown.WORKER: "Worker",
}


def metrics_page() -> str:
    sections = (_metrics_section(title, shown) for shown, title in _METRICS_OF.items())
    return "\n".join([_METRICS_TITLE, *sections])


def _metrics_section(title: str, shown: Shown) -> str:
    rows = "\n".join(_metric_row(metric) for metric in METRICS if metric.shown is shown)
    return f"## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n{rows}\n"


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help}. |"


# --- the wire --------------------------------------------------------------------------------------------------------------

_WIRE_TITLE = """\
# Messages in the streams

This page is made from the modules that read and write the messages. A group has these objects in JetStream, here for
the group `orders`:

| object | name |
|---|---|
{names}

Bodies hold PostgreSQL's own messages as the server sent them, so any decoder of `pgoutput` can read a change, and any
reader of COPY text a copied row. A reader passes over headers that it does not know. The number in `Pgsluice-Format`
grows when an older reader would misread a message; a worker that meets a number it does not know stops with 70.
"""


def wire_page() -> str:
    sections = (f"## {title}\n\n```text\n{_specification(import_module(name))}\n```\n" for title, name in _WIRES.items())
    return "\n".join([_WIRE_TITLE.format(names=_object_names(GroupNames("orders"))), *sections])


def _object_names(group: GroupNames) -> str:
    names = {
        "stream of changes": group.changes_stream,
        "stream of copied rows": group.snapshot_stream,
        "stream of dead letters": group.dead_stream,
        "bucket of the group's state": group.bucket,
    }
    return "\n".join(f"| {thing} | `{name}` |" for thing, name in names.items())


# --- the API ---------------------------------------------------------------------------------------------------------------

_API_TITLE = """\
# Python API

This page is made from the package's own documentation. [Write a sink](../how-to/own-sink.md) and
[a rule](../how-to/own-rule.md) show how the names are used.
"""


def api_page() -> str:
    tested = f"## pgsluice.testing\n\n```text\n{_specification(testing)}\n```\n"
    return f"{_API_TITLE}\n```text\n{_specification(pgsluice)}\n```\n\n{tested}"


def _specification(module: ModuleType) -> str:
    docstring = ast.get_docstring(ast.parse(inspect.getsource(module))) or ""
    return re.sub(r"``", "", docstring)


# --- the REST API ----------------------------------------------------------------------------------------------------------

_REST_TITLE = """\
# REST API

This page is generated from the description of the API of `pgsluice server`, [openapi.v1.json](schemas/openapi.v1.json)
(OpenAPI 3.1). A running server returns its own at `GET /api/v1/openapi.json`. [Run the server](../how-to/server.md#the-api)
shows requests with `curl`.

Send a token as `Authorization: Bearer TOKEN`. An error is a [ProblemContent](#problemcontent) as
`application/problem+json`.
"""


def rest_page(description: dict[str, Any]) -> str:
    """The operations by resource, in the order of the description, then the types that they name."""
    sections: dict[str, list[str]] = {}
    for path, operations in description["paths"].items():
        for verb, operation in operations.items():
            sections.setdefault(_resource(path), []).append(_operation(verb.upper(), path, operation))
    resources = [f"## {name}\n\n" + "\n".join(operations) for name, operations in sections.items()]
    types = [_type_section(name, schema) for name, schema in sorted(description["components"]["schemas"].items())]
    return "\n".join([_REST_TITLE, *resources, "## Types\n", *types])


def _resource(path: str) -> str:
    """A group's resources by their own name, the server's together."""
    words = path.removeprefix(PREFIX).strip("/").split("/")
    is_below = words[0] in ("groups", "pipelines") and len(words) > 1
    if not is_below and words[0] not in ("groups", "pipelines"):
        return "Server"
    resource = words[2] if len(words) > 2 and words[1].startswith("{") else words[0]
    return resource.replace("-", " ").capitalize()


def _operation(verb: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [each for each in operation["parameters"] if each["in"] != "path"]
    listed = ", ".join(f"`{each['name']}`" + (" (required)" if each["required"] else "") for each in parameters)
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    status, answer = next(iter(operation["responses"].items()))
    content = next(iter(answer.get("content", {}).items()), None)
    returned = "no content" if content is None else _type_of(content[1]["schema"])
    if content is not None and content[0] != "application/json":
        returned = f"`{content[0]}`"
    lines = [
        f"### {operation['summary']}\n",
        f"`{verb} {path}`\n",
        f"- {operation['description']}",
        *([f"- Parameters: {listed}."] if listed else []),
        *([f"- Body: {_type_of(body['schema'])}."] if body else []),
        f"- Answer: {status}, {returned}.\n",
    ]
    return "\n".join(lines)


def _type_of(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(reference)}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": list(alternatives)}:
            return " or ".join(map(_type_of, alternatives))
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type_of(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object of {_type_of(values)}"
        case {"format": str(form)}:
            return form
        case {"type": str(kind)}:
            return kind
        case _:
            return "any JSON"


def _type_section(name: str, schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"### {name}\n\nOne of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".\n"
    needed = schema.get("required", [])
    rows = "\n".join(
        f"| `{field}` | {_type_of(kind)} | {'yes' if field in needed else ''} |" for field, kind in schema["properties"].items()
    )
    return f"### {name}\n\n| field | type | required |\n|---|---|---|\n{rows}\n" if rows else f"### {name}\n\nNo fields.\n"

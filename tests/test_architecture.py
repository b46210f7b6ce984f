"""What a reviewer would have to watch for by hand: sizes, names, borders between packages, documents that go stale."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ARCHITECTURE = REPOSITORY / "ARCHITECTURE.md"
PRODUCT = ("shared", "replicator", "rules", "worker", "console")
EVERYTHING = (*PRODUCT, "benchmarks", "tests")

FILE_LINES_WARN, FILE_LINES_FAIL = 400, 500
FUNCTION_LINES_WARN, FUNCTION_LINES_FAIL = 40, 60

FOLDER_MODULES = 20

ROLES_OF_A_SINK = {"sink", "options", "writer", "findings"}
"""What each sink's folder has one of."""

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
"""Exceptions, each with the reason why it reads better in one piece."""

ENTRANCES = {
    "click": (
        "console/check/check_command.py",
        "console/commands.py",
        "console/ddl_commands.py",
        "console/documents/documents_command.py",
        "console/executor/executor_commands.py",
        "console/flags.py",
        "console/inspect/inspect_commands.py",
        "console/program.py",
        "console/search/search_commands.py",
        "console/server/server_commands.py",
        "console/subscriptions/subscription_commands.py",
        "console/pipelines/pipeline_commands.py",
        "console/table_commands.py",
        "console/up/up_command.py",
        "console/units/unit_commands.py",
        "console/worker.py",
    ),
    "nats": (
        "shared/broker/streams.py",
        "shared/broker/stream_error.py",
        "shared/broker/connection.py",
        "shared/process/domain.py",
        "shared/broker/dead_letter_stream.py",
        "shared/broker/broker_findings.py",
        "shared/broker/bucket.py",
        "shared/alerts/alert_watch.py",
        "shared/alerts/facts.py",
        "worker/kafka_source/range_index.py",
        "console/ddl_log.py",
        "console/forget.py",
        "console/documents/control_bucket.py",
        "console/status.py",
        "console/watch/look.py",
        "console/inspect/messages.py",
        "console/pipelines/pipeline_runs.py",
        "console/check/pipeline_look.py",
        "replicator/preflight/query_findings.py",
        "console/inspect/shown.py",
        "console/inspect/row_trace.py",
        "console/executor/executors.py",
        "console/runner/runner.py",
        "console/server/audit.py",
        "console/server/live/group_looks.py",
        "console/server/parts.py",
        "console/subscriptions/subscribing.py",
        "worker/sinks/subscriptions/subscription_book.py",
        "console/subscriptions/subscription_list.py",
        "replicator/group_start.py",
        "replicator/replicator.py",
        "replicator/session.py",
        "replicator/metrics/group_watch.py",
        "replicator/metrics/replicator_vitals.py",
        "replicator/publisher.py",
        "replicator/pipelines/pipeline_run.py",
        "replicator/pipelines/pipeline_group.py",
        "replicator/pipelines/range_copy.py",
        "replicator/pipelines/resumption.py",
        "replicator/pipelines/run_letters.py",
        "replicator/snapshot/copy_task.py",
        "replicator/snapshot/dead_rows.py",
        "replicator/snapshot/preparation.py",
        "replicator/snapshot/range_publisher.py",
        "replicator/snapshot/copy_round.py",
        "replicator/snapshot/snapshot.py",
        "worker/group_streams.py",
        "worker/worker.py",
        "worker/batches/broker_connection.py",
        "worker/dead_letters/registry.py",
        "worker/metrics/worker_vitals.py",
        "worker/positions/target.py",
        "worker/positions/bucket.py",
        "worker/batches/snapshot_reader.py",
        "worker/batches/change_reader.py",
        "worker/batches/planner.py",
        "worker/batches/task_steps.py",
        "worker/batches/task.py",
        "worker/sinks/nats/findings.py",
        "worker/sinks/nats/group_sink.py",
        "worker/sinks/nats/sink.py",
        "worker/sinks/nats/target_stream.py",
    ),
    "confluent_kafka": ("worker/sinks/kafka/", "worker/kafka_source/"),
    "numpy": ("rules/mask.py", "shared/rows/plain_rows.py"),
    "opentelemetry": ("shared/metrics/otlp_push.py",),
    "prometheus_client": ("shared/metrics/exposition.py",),
    "psycopg": ("replicator/", "worker/sinks/postgres/", "shared/postgres/refused_connection.py"),
    "pyspark": (
        "shared/spark/session.py",
        "shared/spark/gateway_habits.py",
        "shared/spark/executors.py",
        "replicator/snapshot/spark_daemon.py",
        "replicator/snapshot/spark_job.py",
        "replicator/pipelines/steps/sql_engine.py",
        "worker/batches/batch_loop.py",
        "worker/data_source/data_source.py",
        "worker/data_source/typed_columns.py",
        "worker/spark_daemon.py",
        "console/spark_archive.py",
    ),
    "starlette": ("console/server/application.py", "console/server/access/entrance.py"),
    "uvicorn": ("console/server/server.py",),
    "cronsim": ("console/executor/ticks.py",),
    "yaml": ("shared/config/yaml_nodes.py", "shared/config/file.py", "rules/document.py"),
}
"""Where each library may be imported: files, or folders ending in a slash."""

FORBIDDEN_FILE_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "base", "types", "models", "misc"}


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (REPOSITORY / package).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function's name and its number of lines without the docstring."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            documented = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
            yield node.name, node.end_lineno - node.lineno + 1 - documented


def test_files_stay_short_enough_to_read_at_once() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in sources(*EVERYTHING)}
    judge(sizes, FILE_LINES_WARN, FILE_LINES_FAIL, LONG_FILES)


def test_functions_stay_on_one_screen() -> None:
    sizes = {f"{relative(path)}:{name}": size for path in sources(*PRODUCT) for name, size in functions(path)}
    judge(sizes, FUNCTION_LINES_WARN, FUNCTION_LINES_FAIL, LONG_FUNCTIONS)


def judge(sizes: dict[str, int], warn: int, fail: int, exceptions: dict[str, str]) -> None:
    """Fails over ``fail`` lines unless listed in ``exceptions``, warns over ``warn``; an exception nobody needs fails too."""
    needless = [name for name in exceptions if sizes.get(name, 0) <= warn]
    assert not needless, f"listed as exceptions but short or gone: {needless}"
    over = {name: size for name, size in sizes.items() if size > warn and name not in exceptions}
    for name, size in over.items():
        warnings.warn(f"{name} has {size} lines (over {warn})", stacklevel=2)
    assert not {name: size for name, size in over.items() if size > fail}


def test_no_file_name_shadows_the_standard_library() -> None:
    assert not [relative(path) for path in sources(*EVERYTHING) if path.stem in sys.stdlib_module_names]


def test_no_file_is_a_drawer_for_everything() -> None:
    assert not [relative(path) for path in sources(*EVERYTHING) if path.stem in FORBIDDEN_FILE_NAMES]


def test_a_folder_holds_no_more_than_can_be_looked_over() -> None:
    folders = Counter(path.parent for path in sources(*PRODUCT) if path.name != "__init__.py")
    assert not {relative(folder): count for folder, count in folders.items() if count > FOLDER_MODULES}


def test_every_folder_says_what_it_holds() -> None:
    folders = {path.parent for path in sources(*PRODUCT)}
    assert not [relative(folder) for folder in folders if not ast.get_docstring(tree(folder / "__init__.py"))]


@pytest.mark.parametrize("package", PRODUCT)
def test_a_file_name_means_one_thing_in_a_package(package: str) -> None:
    named = defaultdict(set)
    for path in sources(package):
        named[path.stem].add(relative(path))
    assert not {stem: paths for stem, paths in named.items() if len(paths) > 1 and stem not in {"__init__", *ROLES_OF_A_SINK}}


def test_modules_are_imported_by_the_one_name_that_is_installed() -> None:
    importers = {relative(path): set(PRODUCT) & imported_packages(path) for path in sources(*EVERYTHING)}
    assert not {path: packages for path, packages in importers.items() if packages}


def test_every_module_says_what_it_is_for() -> None:
    """In a sentence that fits its first line; whoever reads only those lines knows what there is."""
    first_lines = {
        relative(path): (ast.get_docstring(tree(path)) or "").split("\n\n")[0]
        for path in sources(*PRODUCT, "benchmarks", "tests/servers")
    }
    assert not [path for path, first in first_lines.items() if not first or "\n" in first]


def drawn_exceptions() -> dict[str, tuple[str, int | None]]:
    """The tree in the docstring of ``shared/errors.py``: each class with its base and its exit code (None: inherited)."""
    docstring = ast.get_docstring(tree(REPOSITORY / "shared" / "errors.py"))
    assert docstring is not None
    drawn: dict[str, tuple[str, int | None]] = {}
    open_branches: list[tuple[int, str]] = []
    for line in docstring.splitlines():
        match = re.fullmatch(r"(\s*(?:│\s+)*(?:[├└]── )?)(\w+Error)(?:\s+(\d+))?(?:\s{2,}.*)?", line)
        if match is None:
            continue
        indent, name, code = len(match[1]), match[2], match[3]
        while open_branches and open_branches[-1][0] >= indent:
            open_branches.pop()
        drawn[name] = (open_branches[-1][1] if open_branches else "Exception", int(code) if code else None)
        open_branches.append((indent, name))
    return drawn


def defined_exceptions() -> dict[str, tuple[str, int | None]]:
    """The same from the class statements of the whole product."""
    classes = [node for path in sources(*PRODUCT) for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    bases = {node.name: node.bases[0].id for node in classes if node.bases and isinstance(node.bases[0], ast.Name)}

    def is_ours(name: str) -> bool:
        return name == "PgsluiceError" or (name in bases and is_ours(bases[name]))

    return {node.name: (bases[node.name], exit_code(node)) for node in classes if is_ours(node.name)}


def exit_code(class_node: ast.ClassDef) -> int | None:
    for statement in class_node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="exit_code")], value=ast.Constant(value=int(code))):
                return code
    return None


def test_the_drawn_exception_tree_is_the_real_one() -> None:
    drawn, defined = drawn_exceptions(), defined_exceptions()
    assert {name: base for name, (base, _) in drawn.items()} == {name: base for name, (base, _) in defined.items()}
    wrong_codes = {name: code for name, (_, code) in drawn.items() if code is not None and defined[name][1] != code}
    assert not wrong_codes


def test_imports_go_one_way() -> None:
    """The contracts of pyproject.toml: worker -> rules -> shared <- replicator, and the rooms within them."""
    checked = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def imported_packages(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                found.update(alias.name.split(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.split(".")[0])
    return found


@pytest.mark.parametrize("library", ENTRANCES)
def test_a_library_enters_by_named_modules_only(library: str) -> None:
    importers = {relative(path) for path in sources(*PRODUCT) if library in imported_packages(path)}
    assert not {path for path in importers if not path.startswith(ENTRANCES[library])}


def test_the_product_does_not_import_its_tests() -> None:
    assert not [relative(path) for path in sources(*PRODUCT) if {"tests", "benchmarks"} & imported_packages(path)]


def test_every_file_that_the_architecture_names_exists() -> None:
    folders = "|".join((*EVERYTHING, "docker", "docs", "pgsluice"))
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", ARCHITECTURE.read_text()))
    assert named
    assert not {path for path in named if not (REPOSITORY / path).exists()}


def test_the_architecture_names_no_file_without_its_folder() -> None:
    """But for the roles of a sink, which each sink's folder has. A bare name stays behind unnoticed when its file goes."""
    bare = set(re.findall(r"`(\w+)\.py`", ARCHITECTURE.read_text()))
    assert not bare - ROLES_OF_A_SINK


def modules_on_the_map() -> list[str]:
    """The modules in the lists of ARCHITECTURE.md that begin with a room: "- `worker/batches/`: `task` a partition; …"."""
    rooms = re.findall(r"^- `([\w/]+/)`:(.*?)(?=^- |^$)", ARCHITECTURE.read_text(), re.MULTILINE | re.DOTALL)
    return [f"{room}{name}.py" for room, modules in rooms for name in re.findall(r"`(\w+)`", modules)]


def test_the_map_of_the_architecture_shows_every_module_once() -> None:
    modules = [relative(path) for path in sources(*PRODUCT) if path.name != "__init__.py"]
    assert sorted(modules_on_the_map()) == sorted(modules)


OPEN_BRANCHES = {
    "console/inspect/trial_steps.py": "a filter that leaves a row as it is has nothing else to tell",
    "replicator/definitions/consequences.py": "what was there before is a table or a type, and nothing else",
    "replicator/definitions/source_definitions.py": "completes a row's table, and nothing else has columns",
    "rules/ruleset.py": "looks for the filters, or the transforms, among the rules; the other kinds are no concern of it",
    "shared/definitions/difference.py": "only of a table that is there on both sides can it be said what differs",
    "shared/definitions/wording.py": "what was there before is a table or a type, and nothing else",
    "shared/wire/published_definition.py": "what was there before is a table or a type, and nothing else",
    "worker/dead_letters/letter.py": "of the messages, which are all decoded here, only the truncation names several tables",
    "worker/definitions/policy.py": "what was there before is a table or a type, and nothing else",
    "worker/definitions/worker_definitions.py": "looks for the keys of tables, which nothing else has",
    "worker/sinks/lines/definition_fields.py": "what was there before is a table or a type, and nothing else",
    "worker/sinks/postgres/definitions/alteration.py": "follows the table's name, which one kind of difference changes",
    "worker/sinks/postgres/fold/keyed_fold.py": "asks of each row whether it is a tuple first, which most are",
    "worker/sinks/postgres/fold/piece.py": "lists the pieces of one kind",
    "worker/sinks/postgres/merge/refused_rows.py": "empties the stages of all pieces but staged ones, whose tables are their own",
    "worker/sinks/postgres/sessions.py": "prepares stages for all pieces but those that have their own",
    "worker/sinks/search/definitions/index_alteration.py": "of tables that were there; whatever else is told has no documents",
    "worker/sinks/search/definitions/rebuilding.py": "looks for tables that were there, and for rows that were written anew",
}
"""Files that ask by ``isinstance`` for one member of a closed union, each with the reason why it need not know the others."""


def union_members(node: ast.expr) -> list[str]:
    """The names in ``A | B | None``; none when the expression is anything else."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return union_members(left)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Name(id=name)):
            return [*union_members(left), name]
        case ast.Name(id=name):
            return [name]
        case _:
            return []


def our_classes() -> list[ast.ClassDef]:
    return [node for path in sources(*PRODUCT) for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]


@cache
def our_enums() -> frozenset[str]:
    return frozenset(each.name for each in our_classes() if any(ast.unparse(base).endswith("Enum") for base in each.bases))


@cache
def members_of_unions() -> frozenset[str]:
    """Our classes that are members of a union with a name (``Part = TableChanges | Truncation``) or of a field's."""
    nodes = [node for path in sources(*PRODUCT) for node in ast.walk(tree(path))]
    named = [node.value for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)]
    fields = [node.annotation for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    ours = {each.name for each in our_classes()} - our_enums()
    unions = [union_members(expression) for expression in (*named, *fields)]
    return frozenset(name for union in unions if len(union) > 1 for name in union if name in ours)


def named_types(pattern: ast.pattern) -> set[str]:
    """The classes and enums that a pattern names."""
    named = {ast.unparse(node.cls) for node in ast.walk(pattern) if isinstance(node, ast.MatchClass)}
    values = [node.value for node in ast.walk(pattern) if isinstance(node, ast.MatchValue)]
    return named | {ast.unparse(value.value) for value in values if isinstance(value, ast.Attribute)}


def ends_in_assert_never(statement: ast.Match) -> bool:
    return ast.unparse(statement.cases[-1].body[-1]).startswith("assert_never(")


def test_every_match_over_a_closed_type_ends_in_assert_never() -> None:
    matches = [(path, node) for path in sources(*PRODUCT) for node in ast.walk(tree(path)) if isinstance(node, ast.Match)]
    closed = our_enums() | members_of_unions()
    over_closed = [(path, node) for path, node in matches if any(named_types(case.pattern) & closed for case in node.cases)]
    assert over_closed
    assert not [f"{relative(path)}:{node.lineno}" for path, node in over_closed if not ends_in_assert_never(node)]


def test_no_branch_takes_what_is_left_of_a_closed_union_for_granted() -> None:
    """``isinstance`` with one member does not tell the type checker what to do with a new one. Assertions are no branches."""
    asking: set[str] = set()
    for path in sources(*PRODUCT):
        asserted = {id(call) for node in ast.walk(tree(path)) if isinstance(node, ast.Assert) for call in ast.walk(node)}
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]) if id(node) not in asserted:
                    names = {name.id for name in ast.walk(kind) if isinstance(name, ast.Name)}
                    asking |= {relative(path)} if names & members_of_unions() else set()
    assert asking == set(OPEN_BRANCHES)

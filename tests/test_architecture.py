"""What a reviewer would have to watch for by hand: sizes, names, borders between packages, documents that go stale.

Each test is a rule that a sentence says, and names whatever breaks it. A reason for an exception stands at the exception.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from tests.misses import no_misses
from tests.source_code import EVERYTHING, PRODUCT, REPOSITORY, folders, nodes, relative, sources, tree

ARCHITECTURE = REPOSITORY / "ARCHITECTURE.md"

FILE_LINES_WARN, FILE_LINES_FAIL = 400, 500
FUNCTION_LINES_WARN, FUNCTION_LINES_FAIL = 40, 60

FOLDER_MODULES = 20

ROLES_OF_A_SINK = {"sink", "options", "writer", "findings"}
"""What each sink's folder has one of."""

ENTRANCES = {
    "click": ("console/*command.py", "console/*commands.py", "console/flags.py", "console/program.py", "console/worker.py"),
    "confluent_kafka": ("worker/sinks/kafka/*", "worker/kafka_source/*"),
    "cronsim": ("console/executor/*",),
    "nats": ("shared/broker/*", "worker/sinks/nats/*", "replicator/snapshot/*", "console/server/*"),
    "numpy": ("shared/rows/*", "rules/*"),
    "opentelemetry": ("shared/metrics/*",),
    "prometheus_client": ("shared/metrics/*",),
    "psycopg": ("replicator/*", "worker/sinks/postgres/*", "shared/postgres/*"),
    "pyspark": (
        *("shared/spark/*", "*/spark_daemon.py"),
        *("replicator/snapshot/*", "replicator/pipelines/steps/*", "worker/batches/*", "worker/data_source/*"),
    ),
    "starlette": ("console/server/*",),
    "uvicorn": ("console/server/*",),
    "yaml": ("shared/config/*", "rules/*"),
}
"""The rooms of each library, whose modules speak it. Whoever is elsewhere asks one of them."""

HANDED_ON = {"nats.aio.client.Client", "nats.aio.msg.Msg"}
"""Types that rooms of a library hand to others: whoever is given one may name it."""

REACHES_OUT = {
    *("asyncio", "http", "select", "shutil", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "urllib"),
    *("confluent_kafka", "nats", "psycopg", "pyspark"),
}
"""Packages by which a module has effects outside itself, waits, or sees what time it is."""

NO_EFFECT = {"psycopg.sql"}
"""What of them composes text and does no more."""

FORBIDDEN_FILE_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "base", "types", "models", "misc"}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function's name and its number of lines without the docstring."""
    defined: list[ast.FunctionDef | ast.AsyncFunctionDef] = [*nodes(path, ast.FunctionDef), *nodes(path, ast.AsyncFunctionDef)]
    for node in defined:
        assert node.end_lineno is not None
        docstring = node.body[0] if ast.get_docstring(node) is not None else None
        documented = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
        yield node.name, node.end_lineno - node.lineno + 1 - documented


def test_files_stay_short_enough_to_read_at_once() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in sources(*EVERYTHING)}
    judge(sizes, FILE_LINES_WARN, FILE_LINES_FAIL)


def test_functions_stay_on_one_screen() -> None:
    sizes = {f"{relative(path)}:{name}": size for path in sources(*PRODUCT) for name, size in functions(path)}
    judge(sizes, FUNCTION_LINES_WARN, FUNCTION_LINES_FAIL)


def judge(sizes: dict[str, int], warn: int, fail: int) -> None:
    """Fails over ``fail`` lines, warns over ``warn``."""
    over = {name: size for name, size in sizes.items() if size > warn}
    for name, size in over.items():
        warnings.warn(f"{name} has {size} lines (over {warn})", stacklevel=2)
    too_long = (f"{name}: {size} lines" for name, size in over.items() if size > fail)
    no_misses(too_long, f"longer than {fail} lines: cut it where a part has a name of its own")


def test_no_file_name_shadows_the_standard_library() -> None:
    shadows = (relative(path) for path in sources(*EVERYTHING) if path.stem in sys.stdlib_module_names)
    no_misses(shadows, "called as a module of the standard library: find another noun")


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = (relative(path) for path in sources(*EVERYTHING) if path.stem in FORBIDDEN_FILE_NAMES)
    no_misses(drawers, "anything would fit in there: call it by the noun that it holds")


def test_a_folder_holds_no_more_than_can_be_looked_over() -> None:
    counts = Counter(path.parent for path in sources(*PRODUCT) if path.name != "__init__.py")
    crowded = (f"{relative(folder)}: {count} modules" for folder, count in counts.items() if count > FOLDER_MODULES)
    no_misses(crowded, f"more than {FOLDER_MODULES} modules: make a room of those that belong together")


def test_every_folder_says_what_it_holds() -> None:
    doors = (folder / "__init__.py" for folder in folders())
    silent = (relative(door) for door in doors if not door.is_file() or not ast.get_docstring(tree(door)))
    no_misses(silent, "without a docstring: say in its first line what the folder holds")


def test_a_file_name_means_one_thing_in_a_package() -> None:
    named = defaultdict(list)
    for package in PRODUCT:
        for path in sources(package):
            named[package, path.stem].append(relative(path))
    ambiguous = (
        " and ".join(paths) for (_, stem), paths in named.items() if len(paths) > 1 and stem not in {"__init__", *ROLES_OF_A_SINK}
    )
    no_misses(ambiguous, "one name for two things: call one of them otherwise")


def test_modules_are_imported_by_the_one_name_that_is_installed() -> None:
    strangers = (f"{relative(path)}: {each}" for path in sources(*EVERYTHING) for each in packages(path) & set(PRODUCT))
    no_misses(strangers, "only pgsluice is installed: write pgsluice. before it")


def test_every_module_says_what_it_is_for() -> None:
    """In a sentence that fits its first line; whoever reads only those lines knows what there is."""
    first_lines = {
        relative(path): (ast.get_docstring(tree(path)) or "").split("\n\n")[0]
        for path in sources(*PRODUCT, "benchmarks", "tests/servers")
    }
    unclear = (path for path, first in first_lines.items() if not first or "\n" in first)
    no_misses(unclear, "without a docstring whose first line is a whole sentence: say there what the module is")


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
    classes = [node for path in sources(*PRODUCT) for node in nodes(path, ast.ClassDef)]
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
    misplaced = (
        f"{name}: drawn below {drawn.get(name, ('nothing',))[0]}, defined below {defined.get(name, ('nothing',))[0]}"
        for name in drawn.keys() | defined.keys()
        if name not in drawn or name not in defined or drawn[name][0] != defined[name][0]
    )
    no_misses(misplaced, "draw it in the docstring of shared/errors.py where it is")
    wrong_codes = (name for name, (_, code) in drawn.items() if code is not None and defined[name][1] != code)
    no_misses(wrong_codes, "another exit code than is drawn in shared/errors.py")


def test_imports_go_one_way() -> None:
    """The contracts of pyproject.toml: worker -> rules -> shared <- replicator, and the rooms within them."""
    checked = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@cache
def imports(path: Path) -> frozenset[str]:
    """Everything that it imports, by its whole name: ``psycopg.sql`` for ``from psycopg import sql``."""
    found: set[str] = set()
    for node in nodes(path, ast.Import):
        found.update(alias.name for alias in node.names)
    for taken in nodes(path, ast.ImportFrom):
        if taken.module is not None and taken.level == 0:
            found.update(f"{taken.module}.{alias.name}" for alias in taken.names)
    return frozenset(found)


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def is_in(path: Path, rooms: Iterable[str]) -> bool:
    return any(fnmatch(relative(path), room) for room in rooms)


def test_a_library_enters_by_its_rooms_only() -> None:
    strangers = (
        f"{relative(path)} imports {name}, which is for {', '.join(ENTRANCES[library])}"
        for path in sources(*PRODUCT)
        for name in imports(path) - HANDED_ON
        if (library := name.partition(".")[0]) in ENTRANCES and not is_in(path, ENTRANCES[library])
    )
    no_misses(strangers, "ask a module of those rooms to do it, or add this one's room to ENTRANCES")


def test_a_room_speaks_the_library_that_it_is_listed_for() -> None:
    idle = (
        f"{room} for {library}"
        for library, rooms in ENTRANCES.items()
        for room in rooms
        if not any(library in packages(path) and is_in(path, [room]) for path in sources(*PRODUCT))
    )
    no_misses(idle, "no module there imports it: take it out of ENTRANCES")


def says_it_is_pure(path: Path) -> bool:
    """In the first paragraph of its docstring, or its folder's docstring does."""
    own, _, _ = (ast.get_docstring(tree(path)) or "").partition("\n\n")
    return re.search(r"\b[Pp]ure\b", f"{own} {ast.get_docstring(tree(path.parent / '__init__.py'))}") is not None


def test_what_says_that_it_is_pure_imports_nothing_that_reaches_out() -> None:
    impure = (
        f"{relative(path)}: {name}"
        for path in sources(*PRODUCT)
        if says_it_is_pure(path)
        for name in imports(path) - NO_EFFECT
        if name.partition(".")[0] in REACHES_OUT
    )
    no_misses(impure, "it, or its folder, says that it is pure: give it what it needs as a parameter, or say otherwise")


def test_the_product_does_not_import_its_tests() -> None:
    importers = (relative(path) for path in sources(*PRODUCT) if {"tests", "benchmarks"} & packages(path))
    no_misses(importers, "tests and benchmarks are not installed: move what it needs into the product")


def test_every_file_that_the_architecture_names_exists() -> None:
    tops = "|".join((*EVERYTHING, "docker", "docs", "pgsluice"))
    named = set(re.findall(rf"`((?:{tops})/[\w./-]*)`", ARCHITECTURE.read_text()))
    assert named
    no_misses((path for path in named if not (REPOSITORY / path).exists()), "gone, but named in ARCHITECTURE.md: name its heir")


def test_the_architecture_names_no_file_without_its_folder() -> None:
    """But for the roles of a sink, which each sink's folder has. A bare name stays behind unnoticed when its file goes."""
    bare = set(re.findall(r"`(\w+)\.py`", ARCHITECTURE.read_text()))
    no_misses(bare - ROLES_OF_A_SINK, "named without a folder in ARCHITECTURE.md: write the whole path")


def test_the_map_of_the_architecture_shows_every_room_once() -> None:
    """What its modules are they say themselves, in their first lines. A line begins with the rooms that it is about."""
    lines = re.findall(r"^- ((?:`[\w/]+/`,\s+)*`[\w/]+/`):", ARCHITECTURE.read_text(), re.MULTILINE)
    shown = Counter(room for line in lines for room in re.findall(r"`([\w/]+)/`", line))
    rooms = {relative(folder) for folder in folders()}
    no_misses(rooms - shown.keys(), "not on the map of ARCHITECTURE.md: add a line '- `folder/`: what it holds'")
    no_misses((room for room, times in shown.items() if times > 1), "more than once on the map of ARCHITECTURE.md")

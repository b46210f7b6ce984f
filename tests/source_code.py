"""The repository's own Python, as tests read it that hold all of it to a rule."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

N = TypeVar("N", bound=ast.AST)

REPOSITORY = Path(__file__).resolve().parents[1]

PRODUCT = tuple(sorted(link.name for link in (REPOSITORY / "pgsluice").iterdir() if link.is_symlink()))
"""The folders that are installed, as parts of the package."""

EVERYTHING = (*PRODUCT, "benchmarks", "tests")


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (REPOSITORY / package).rglob("*.py"))


def folders() -> set[Path]:
    """Those of the product that hold modules."""
    return {path.parent for path in sources(*PRODUCT)}


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    gc.disable()  # what is kept is no garbage, and there are millions of it
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def _nodes(path: Path) -> Mapping[type[ast.AST], Sequence[Any]]:
    found: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree(path)):
        found[type(node)].append(node)
    return found


def nodes(path: Path, kind: type[N]) -> Sequence[N]:
    """As ``ast.walk`` finds them."""
    return _nodes(path).get(kind, ())


def reasons(path: Path, marker: str) -> list[str]:
    """What comments ``# marker: reason`` say why the file, or a place in it, is an exception to a rule."""
    return re.findall(rf"# {marker}: (\S.*)", path.read_text())


def calls(path: Path, function: str) -> Iterator[ast.Call]:
    """Of a function by its bare name."""
    for node in nodes(path, ast.Call):
        match node.func:
            case ast.Name(id=name) if name == function:
                yield node

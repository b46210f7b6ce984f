"""Which ring a test is in, told by what it uses: the second, with the marker ``servers``, or the first, which is pure and fast.

In the second are tests that take a fixture of a server, tests of a module that takes something from ``tests.servers`` or from
Spark, and tests that start a process: those whose code names what does so, or calls a fixture or a function of tests that does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

import pytest

_SERVER_FIXTURES = {
    "german",
    "postgres",
    "postgres_of",
    "nats_server",
    "nats_cluster",
    "fake_opensearch",
    "real_opensearch",
    "elasticsearch",
    "search_server",
    "real_kafka",
    "source_database",
    "target_database",
    "spark_environment",
}
_SERVER_PACKAGES = ("tests.servers", "pyspark")
_STARTERS = {
    "subprocess",
    "tests.terminal",
    "tests.borrowed_spark",
    "pgsluice.console.processes.child_process.ChildProcess",
    "pgsluice.console.processes.supervised_process.SupervisedProcess",
    "pgsluice.replicator.pipelines.steps.sql_engine.SqlEngine",
}
"""Modules, and things in modules."""
_FORK = "fork"
"""Of ``os``: a process as well."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _is_in_second(item):
            item.add_marker("servers")


def _is_in_second(item: pytest.Function) -> bool:
    if _SERVER_FIXTURES.intersection(item.fixturenames) or _uses_servers(item.module):
        return True
    definitions = item._fixtureinfo.name2fixturedefs
    fixtures = [definition.func for name in item.fixturenames for definition in definitions.get(name, ())]
    return any(_starts_processes(each) for each in (item.function, *fixtures) if isinstance(each, FunctionType))


@functools.cache
def _uses_servers(module: ModuleType) -> bool:
    return any(_origin(thing).startswith(_SERVER_PACKAGES) for thing in vars(module).values())


@functools.cache
def _starts_processes(function: FunctionType) -> bool:
    """Looks into what ``function`` calls, as far as that is a part of the tests."""
    found: set[FunctionType] = set()
    left = [function]
    while left:
        each = left.pop()
        if each in found:
            continue
        found.add(each)
        names = set(_names(each.__code__))
        things = [each.__globals__[name] for name in names if name in each.__globals__]
        if _FORK in names or any(_STARTERS & {_origin(thing), _place(thing)} for thing in things):
            return True
        left += [inner for thing in things for inner in _functions_of_tests(thing)]
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions_of_tests(thing: object) -> list[FunctionType]:
    if not _place(thing).startswith(("tests.", "pgsluice.testing.")):
        return []
    inside = [thing, *vars(thing).values()] if isinstance(thing, type) else [thing]
    unwrapped = [inspect.unwrap(each) if callable(each) else each for each in inside]
    return [each for each in unwrapped if isinstance(each, FunctionType)]


def _place(thing: object) -> str:
    """The module that ``thing`` is, or is defined in."""
    return str(getattr(thing, "__name__" if isinstance(thing, ModuleType) else "__module__", ""))


def _origin(thing: object) -> str:
    """Its place, and its own name after that."""
    name = getattr(thing, "__qualname__", "")
    return f"{_place(thing)}.{name}" if name else _place(thing)

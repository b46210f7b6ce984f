"""Where a run of tests spends its time: ``pytest -p tests.runs.costs`` prints tables of wall and CPU time, by weight.

Costs are taken around each test, around each shared fixture, and around each start of a server, of a program of ours and of
Spark. CPU time is that of the pytest process and of everything below it, read from /proc: what a server goes on doing between
two tests is charged to the test that runs meanwhile. Costs nest: a start is in its fixture, and a fixture in its test's setup.
With xdist each worker sends its costs to the controller, which prints.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.runs.schedule import DURATIONS

TABLE_ROWS = 40
SHORTEST_S = 1.0
"""Of a module whose duration is worth knowing."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROPERTY = "cost"

Cost = tuple[str, str, float, float]
"""Kind, name, seconds on the clock, seconds of CPU."""

_costs: list[Cost] = []
_totals: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
"""By kind and name: how often, seconds on the clock, seconds of CPU."""


def _cpu_s() -> float:
    """CPU time of this process and of all its descendants, also of those that were waited for: proc(5), ``stat``."""
    used: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            used[int(name)] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(int(name))
    ticks, family = 0, [os.getpid()]
    while family:
        pid = family.pop()
        ticks += used[pid]
        family += children[pid]
    return ticks / _TICKS_PER_S


@contextlib.contextmanager
def _measured(kind: str, name: str) -> Iterator[None]:
    wall, cpu = time.monotonic(), _cpu_s()
    try:
        yield
    finally:
        # A descendant that nobody waited for takes its time along when it ends.
        _costs.append((kind, name, time.monotonic() - wall, max(0.0, _cpu_s() - cpu)))


def _measure_calls(owner: Any, method: str, kind: str, name: Callable[[Any], str]) -> None:
    original = getattr(owner, method)

    @functools.wraps(original)
    def measured(self: Any, *arguments: Any, **named: Any) -> Any:
        with _measured(kind, name(self)):
            return original(self, *arguments, **named)

    setattr(owner, method, measured)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="renew the durations by which modules are scheduled")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--collect-only"):
        return
    import pgsluice.shared.spark.session as session
    from tests.servers.lent_spark import HeldSpark
    from tests.servers.program import PgsluiceProcess
    from tests.servers.server_process import ServerProcess

    _measure_calls(ServerProcess, "start", "start", lambda server: server.title)
    _measure_calls(PgsluiceProcess, "start", "start", lambda program: f"pgsluice {program.role}")
    _measure_calls(HeldSpark, "__init__", "start", lambda _: "Spark that is lent (its CPU comes later)")
    _measure_calls(session.Spark, "start", "start", lambda _: "Spark in the tests' process")
    sleep = time.sleep

    def slept(seconds: Any) -> None:
        begun = time.monotonic()
        sleep(seconds)
        _costs.append(("sleep", "time.sleep", time.monotonic() - begun, 0.0))

    time.sleep = slept


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    with _measured("fixture", f"{fixturedef.baseid}::{fixturedef.argname}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with _measured("test", item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test's own cost is known when its last report is made; that of the one before goes with this one."""
    report = yield
    report.user_properties.append((_PROPERTY, [*_costs, ("phase", call.when, call.duration, 0.0)]))
    _costs.clear()
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Those of the last test."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[_PROPERTY] = _costs
    else:
        _add(_costs)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _add(node.workeroutput[_PROPERTY])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, costs in report.user_properties:
        if name == _PROPERTY:
            assert isinstance(costs, list)
            _add(costs)


def _add(costs: list[Cost]) -> None:
    for kind, what, wall, cpu in costs:
        for group in _groups(kind, what):
            total = _totals[group[0]][group[1]]
            total[:] = [total[0] + 1, total[1] + wall, total[2] + cpu]


def _groups(kind: str, name: str) -> list[tuple[str, str]]:
    if kind != "test":
        return [(kind, name)]
    module = name.partition("::")[0]
    folders = module.split("/")
    return [("test", name), ("module", module), ("folder", "/".join(folders[: min(3, len(folders) - 1)])), ("run", "all tests")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind in ("run", "phase", "folder", "start", "sleep", "fixture", "module", "test"):
        by_weight = sorted(_totals[kind].items(), key=lambda entry: -max(entry[1][1:]))
        terminalreporter.section(f"cost by {kind}", sep="-")
        for name, (count, wall, cpu) in by_weight[:TABLE_ROWS]:
            terminalreporter.write_line(f"{wall:9.1f} s {cpu:9.1f} s CPU {int(count):7d}  {name}")
    if terminalreporter.config.getoption("--write-durations"):
        modules = {name: round(wall, 1) for name, (_, wall, _) in sorted(_totals["module"].items()) if wall >= SHORTEST_S}
        DURATIONS.write_text(json.dumps(modules, indent=0) + "\n")

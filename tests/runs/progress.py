"""One line of progress instead of a dot for each test: how many are done, and the test that has been running longest.

On a terminal the line is renewed each second; elsewhere it is printed each half minute. A failure is printed with its traceback
at once, because long runs continue for an hour. Only with ``--numprocesses``: a single process captures the output of its tests.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

_TERMINAL_INTERVAL_S = 1.0
_FILE_INTERVAL_S = 30.0
_LONGEST_NAME = 100
_LONGEST_TRACEBACK = 4000


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and config.option.verbose == 0 and not config.option.collectonly:
        config.pluginmanager.register(_Progress(config.pluginmanager.get_plugin("terminalreporter")), "progress")


class _Progress:
    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._total = self._done = self._failed = 0
        self._running: dict[str, float] = {}
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._show_repeatedly, name="progress", daemon=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = len(ids)
        if not self._thread.is_alive():
            self._thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        with self._lock:
            self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        with self._lock:
            self._running.pop(nodeid, None)
            self._done += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Counted under the usual name, without a letter for each."""
        if report.failed:
            return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")
        return (report.outcome, "", "") if report.when == "call" or report.skipped else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._lock:
                self._failed += 1
                self._write(f"FAILED after {report.duration:.1f} s: {report.nodeid}\n{report.longreprtext[-_LONGEST_TRACEBACK:]}")

    def pytest_sessionfinish(self) -> None:
        self._has_ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _show_repeatedly(self) -> None:
        while not self._has_ended.wait(_TERMINAL_INTERVAL_S if self._terminal.isatty else _FILE_INTERVAL_S):
            with self._lock:
                if self._terminal.isatty:
                    self._terminal.rewrite(self._line()[: self._terminal._tw.fullwidth - 1], erase=True)
                else:
                    self._write(self._line())

    def _write(self, line: str) -> None:
        self._terminal.ensure_newline() if not self._terminal.isatty else self._terminal.rewrite("", erase=True)
        self._terminal.write_line(line)
        self._terminal.flush()

    def _line(self) -> str:
        elapsed = int(time.monotonic() - self._begun)
        line = f"{elapsed // 60}:{elapsed % 60:02d}  {self._done:,} of {self._total:,} tests done, {self._failed} failed"
        if self._running:
            name, since = min(self._running.items(), key=lambda entry: entry[1])
            line += f"; running for {time.monotonic() - since:.0f} s: {name[:_LONGEST_NAME]}"
        return line

"""What a failed test says besides its traceback: the last lines of the servers and programs it used, and how to repeat it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.servers import last_lines


def pytest_runtest_setup() -> None:
    last_lines.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"last lines of {title}", text) for title, text in last_lines.told()]
        report.sections.append(("to repeat this test alone", f".venv/bin/python -m pytest '{item.nodeid}'"))
    return report

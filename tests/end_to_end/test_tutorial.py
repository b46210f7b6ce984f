"""The commands of the tutorials in docs/, in their order, do what stands below them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.tutorial_reader import PORTS, TutorialReader
from tests.servers.child import free_port


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[TutorialReader]:
    with ExitStack() as terminals:
        yield TutorialReader(tmp_path, tuple(str(free_port()) for _ in PORTS), terminals)


@pytest.mark.timeout(900)
def test_the_tutorial_works_as_it_is_written(reader: TutorialReader) -> None:
    assert reader.read("tutorial.md") == 3


@pytest.mark.long  # Spark starts four times
@pytest.mark.timeout(900)
def test_the_tutorial_of_two_streams_works_as_it_is_written(reader: TutorialReader) -> None:
    assert reader.read("mirrored-tutorial.md") == 4


@pytest.mark.long  # a worker, and runs that are slow on purpose
@pytest.mark.timeout(900)
def test_the_tutorial_of_a_query_works_as_it_is_written(reader: TutorialReader) -> None:
    assert reader.read("sql-tutorial.md") == 6


@pytest.mark.long  # Spark starts four times
@pytest.mark.timeout(900)
def test_the_tutorial_of_a_search_index_works_as_it_is_written(reader: TutorialReader) -> None:
    assert reader.read("search-tutorial.md") == 5

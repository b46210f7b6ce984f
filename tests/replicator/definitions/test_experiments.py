"""Every kind of statement, as it stands in the stream between the rows, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.replicator.definitions.captured import Stream, install
from tests.replicator.definitions.conftest import VERSIONS
from tests.replicator.definitions.experiments import Experiment, load_experiments
from tests.servers import PostgresServer
from tests.servers.postgres_binaries import VERSIONS as EVERY

EXPERIMENTS = load_experiments()


def cases() -> list[object]:
    """Each experiment on each version that can do it; the versions between are for ``make test-versions``."""
    marks = {version: [] if version in VERSIONS else [pytest.mark.long, pytest.mark.versions] for version in EVERY}
    pairs = [(version, experiment) for version in EVERY for experiment in EXPERIMENTS if experiment.can_run_on(version)]
    return [pytest.param(*pair, id=f"{pair[0]}-{pair[1].name}", marks=marks[pair[0]]) for pair in pairs]


@pytest.mark.parametrize(("version", "experiment"), cases())
def test_the_stream_tells_what_was_altered_between_the_rows(
    postgres_of: Callable[[int], PostgresServer], names: GroupNames, version: int, experiment: Experiment
) -> None:
    database = postgres_of(version).create_database(f"source_{uuid.uuid4().hex[:12]}")
    try:
        database.execute(experiment.setup)
        database.execute(f"CREATE PUBLICATION {names.publication} {experiment.publication}")
        token = install(database, names, *experiment.patterns)
        stream = Stream.begin(database, names)
        for transaction, expected in experiment.steps:
            assert stream.after(transaction.replace("{publication}", names.publication)) == [*expected], transaction
        assert set(stream.tokens) <= {token}
    finally:
        database.drop()


def test_the_corpus_holds_every_experiment_of_the_capture() -> None:
    """24 is about a target alone: ``test_descriptions`` has it."""
    numbered = {experiment.name.split()[0] for experiment in EXPERIMENTS if experiment.name[0].isdigit()}
    assert numbered == {str(number) for number in range(1, 26)} - {"24"}

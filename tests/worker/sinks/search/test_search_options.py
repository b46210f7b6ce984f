"""What is said of the search sink's settings before anything is connected to."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.search.options import SINK
from tests.worker.sinks.search.sinks import search_settings


@pytest.mark.parametrize(
    ("name", "allowed", "sentence"),
    [
        ("Definitions", (), "which is no name of an index"),
        ("_definitions", (), "which is no name of an index"),
        ("shop,definitions", (), "which is no name of an index"),
        ("n" * 250, (), "which is no name of an index"),
        ("definitions", ("shop_*",), "which search-allow-indexes does not allow"),
    ],
)
def test_an_index_of_definitions_that_cannot_be_is_refused_before_the_worker_starts(
    name: str, allowed: tuple[str, ...], sentence: str
) -> None:
    assert SINK.check is not None
    with pytest.raises(UsageError, match=f"search-schema-index is '{name}', {sentence}"):
        SINK.check(search_settings("http://127.0.0.1:9200", schema_index=name, allow_indexes=allowed))


def test_an_index_of_definitions_that_is_allowed_is_no_error() -> None:
    assert SINK.check is not None
    SINK.check(search_settings("http://127.0.0.1:9200", schema_index="shop_definitions", allow_indexes=("shop_*",)))

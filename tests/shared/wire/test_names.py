"""What a group's objects are called."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.names import GroupNames, check_worker_name

POSTGRES_NAME_BYTES = 63  # NAMEDATALEN - 1


def test_all_names_of_a_group() -> None:
    names = GroupNames("orders-eu_1")
    assert names.publication == names.slot == "pgsluice_orders_eu_1"
    assert names.changes_stream == "pgsluice_orders-eu_1_changes"
    assert names.changes_subject == "pgsluice.orders-eu_1.changes"
    assert names.bucket == "pgsluice_orders-eu_1"
    assert names.definitions_prefix == "pgsluice.ddl.orders-eu_1"
    assert names.in_source("token") == "token_orders_eu_1"
    assert names.event_trigger("drop") == "pgsluice_orders_eu_1_drop"


def test_the_longest_group_fits_a_postgres_name() -> None:
    longest = GroupNames("g" * 40)
    assert len(longest.slot) <= POSTGRES_NAME_BYTES
    assert len(longest.event_trigger("rewrite")) <= POSTGRES_NAME_BYTES
    assert len(longest.in_source("partitions")) <= POSTGRES_NAME_BYTES


@pytest.mark.parametrize("name", ["", "Orders", "my group", "-orders", "_orders", "a.b", "ä", "g" * 41, "orders\n", "a*", "a>b"])
def test_a_name_that_would_not_fit_everywhere_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(UsageError, match="like 'orders'"):
        GroupNames(name)
    with pytest.raises(UsageError, match="like 'postgres'"):
        check_worker_name(name)


def test_a_valid_worker_name_is_itself() -> None:
    assert check_worker_name("postgres-2") == "postgres-2"

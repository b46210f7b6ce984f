"""Names of hosts that mean this machine, and names that can be looked up at all."""

from __future__ import annotations

import pytest

from pgsluice.shared.hosts import is_of_one_machine, may_be_name


@pytest.mark.parametrize("host", ["localhost", "LocalHost.", "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "/run/postgresql"])
def test_a_loopback_address_means_each_machine_itself(host: str) -> None:
    assert is_of_one_machine(host)


@pytest.mark.parametrize("host", ["db", "db.localhost.example", "10.0.0.1", "fd00::1", ""])
def test_any_other_address_means_one_machine(host: str) -> None:
    assert not is_of_one_machine(host)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example.com", ".a"])
def test_a_name_that_python_cannot_look_up_is_no_name(host: str) -> None:
    assert not may_be_name(host)


@pytest.mark.parametrize("host", ["db.example.com", "büro.example.com", "10.0.0.1", "::1", ""])
def test_other_names_may_be_looked_up(host: str) -> None:
    assert may_be_name(host)

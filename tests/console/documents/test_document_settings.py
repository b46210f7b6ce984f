"""What a process of a group is started with, and how its source is reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.console.documents.document_bounds import DocumentBounds
from pgsluice.console.documents.document_settings import SourceSettings, load_document, process_environment, source_in
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.shared.config.connections import NatsSettings, PostgresSettings
from pgsluice.shared.errors import UsageError

SOURCE = {"host": "db", "port": "5432", "dbname": "shop", "user": "ada"}
ANYTHING = DocumentBounds(variables=("*",))
OURS = NatsSettings.of_url("nats://broker:4222", "u", "m4rk3r")


def source_in_any(document: GroupDocument) -> PostgresSettings | None:
    return source_in(document, lambda: ANYTHING)


def test_a_document_that_names_no_nats_means_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSLUICE_NATS_TOKEN", "of the server")
    variables = {"PGSLUICE_NATS_URL": "nats://broker:4222", "PGSLUICE_NATS_USER": "u", "PGSLUICE_NATS_PASSWORD": "m4rk3r"}
    given = process_environment(GroupDocument("shop", {"group": "shop"}), OURS)
    assert {name: text for name, text in given.items() if name.startswith("PGSLUICE_NATS")} == variables
    first = process_environment(GroupDocument("shop", {"group": "shop"}), replace(OURS, tls_first=True))
    assert first["PGSLUICE_NATS_TLS_FIRST"] == "true"
    named = process_environment(GroupDocument("shop", {"group": "shop", "nats-url": "nats://other:4222"}), OURS)
    assert not any(name.startswith("PGSLUICE_NATS") for name in named)


def test_the_source_is_known_without_nats_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PASSWORD", "s")
    found = source_in_any(GroupDocument("shop", SOURCE | {"group": "shop", "password": "${SOURCE_PASSWORD}"}))
    assert found is not None
    assert (found.host, found.dbname, found.password) == ("db", "shop", "s")
    assert source_in_any(GroupDocument("shop", {"group": "shop"})) is None
    assert source_in_any(GroupDocument("shop", {"group": "shop", "host": "db"})) is None


def test_what_is_wrong_with_a_document_is_said_of_it_and_not_of_a_file() -> None:
    document = GroupDocument("shop", SOURCE | {"group": "shop", "password": "${A_VARIABLE_THAT_IS_NOT_SET}"})
    with pytest.raises(UsageError, match=r"password \(the document of group 'shop', line \d\)"):
        load_document(document, lambda: ANYTHING, SourceSettings)


def test_a_variable_is_no_setting_because_its_name_begins_one_that_a_document_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGSLUICE_PASSWORD", "of another group")
    monkeypatch.setenv("PGSLUICE_PASSWORD_SHOP", "of the shop")
    document = GroupDocument("shop", SOURCE | {"group": "shop", "password": "${PGSLUICE_PASSWORD_SHOP}"})
    found = source_in_any(document)
    assert found is not None
    assert found.password == "of the shop"
    assert "PGSLUICE_PASSWORD" not in process_environment(document, OURS)


@pytest.mark.parametrize("host", ["a..b", "db," + "x" * 64 + ".example.com"])
def test_a_host_that_is_no_name_is_refused_before_it_is_looked_up(host: str) -> None:
    document = GroupDocument("shop", SOURCE | {"group": "shop", "host": host})
    with pytest.raises(UsageError, match="is no name of a host"):
        load_document(document, lambda: ANYTHING, SourceSettings)
    assert source_in_any(document) is None
    for taken in ("db.example.com,10.0.0.1", "::1", "/var/run/postgresql", "bücher.example", "my_db"):
        load_document(GroupDocument("shop", SOURCE | {"group": "shop", "host": taken}), lambda: ANYTHING, SourceSettings)

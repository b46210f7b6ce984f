"""What is to become of a definition, as the user wrote it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.definition import (
    DefinitionEvent,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableGone,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition
from pgsluice.worker.definitions.policy import ACTIONS, DefinitionAction, DefinitionKind, Policies, kinds_of, table_of
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, partition, with_columns

T = ("shop", "orders")


@pytest.mark.parametrize("kind", DefinitionKind)
def test_every_kind_has_a_default_and_may_stop(kind: DefinitionKind) -> None:
    assert Policies().action(kind, T) is ACTIONS[kind][0]
    assert DefinitionAction.STOP in ACTIONS[kind]
    assert Policies.parse("stop", {}).action(kind, T) is DefinitionAction.STOP
    assert Policies.parse("ignore", {}).action(kind, T) in (DefinitionAction.IGNORE, DefinitionAction.KEEP, DefinitionAction.NULL)
    assert Policies().asked(kind, T) is None
    assert Policies.parse("ignore", {}).asked(kind, T) is None
    assert Policies.parse("stop", {}).asked(kind, T) is DefinitionAction.STOP
    for action in ACTIONS[kind]:
        assert Policies.parse("stop", {kind.value: action.value}).action(kind, T) is action


def test_the_last_choice_that_fits_counts() -> None:
    policies = Policies.parse(
        "apply", {"drop-table": "drop", "shop.* drop-table": "keep", "orders drop-table": "stop", "*.log drop-column": "keep"}
    )
    assert policies.action(DefinitionKind.DROP_TABLE, T) is DefinitionAction.STOP
    assert policies.action(DefinitionKind.DROP_TABLE, ("shop", "items")) is DefinitionAction.KEEP
    assert policies.action(DefinitionKind.DROP_TABLE, ("public", "items")) is DefinitionAction.DROP
    assert policies.action(DefinitionKind.DROP_COLUMN, ("shop", "log")) is DefinitionAction.KEEP
    assert policies.action(DefinitionKind.DROP_COLUMN, T) is DefinitionAction.APPLY
    assert policies.action(DefinitionKind.DROP_TABLE, None) is DefinitionAction.DROP
    assert pickle.loads(pickle.dumps(policies)) == policies


@pytest.mark.parametrize(
    ("key", "action", "said"),
    [
        ("drop-colum", "keep", "'drop-colum' is not a kind of schema change: the kinds are add-column"),
        ("drop-column", "recopy", "'recopy' cannot be done about drop-column: choose one of apply, keep, stop"),
        ("a.b.c drop-column", "keep", "'a.b.c' is not a table"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(key: str, action: str, said: str) -> None:
    with pytest.raises(UsageError, match="ddl-policy: ") as refused:
        Policies.parse("apply", {key: action})
    assert said in str(refused.value)


ADDED, P = with_columns(ID, NOTE, column(3, "more")), partition(1, "p")
MOOD = TypeDefined("ALTER TYPE", 7, "public", "mood", "e", "", (EnumLabel(8, "sad"),))


@pytest.mark.parametrize(
    ("event", "was", "kinds"),
    [
        (TableDefined("ALTER TABLE", ADDED), TABLE, [DefinitionKind.ADD_COLUMN]),
        (TableDefined("ALTER TABLE", TABLE), ADDED, [DefinitionKind.DROP_COLUMN]),
        (TableDefined("ALTER TABLE", replace(ADDED, name="u")), TABLE, [DefinitionKind.RENAME_TABLE, DefinitionKind.ADD_COLUMN]),
        (TableDefined("ALTER TABLE", TABLE), TABLE, []),
        (TableDefined("note", TABLE), None, []),
        (TableDefined("ALTER TABLE", replace(TABLE, partitions=(P,))), TABLE, [DefinitionKind.ATTACH_PARTITION]),
        (TableDefined("CREATE TABLE", replace(TABLE, partitions=(P,))), TABLE, []),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 2), TABLE, [DefinitionKind.VOLATILE_DEFAULT]),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 4), TABLE, [DefinitionKind.REWRITE]),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 6), TABLE, [DefinitionKind.REWRITE]),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 1), TABLE, [DefinitionKind.REWRITE]),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 8), TABLE, []),
        (TableGone("DROP TABLE", 1, "public", "t"), TABLE, [DefinitionKind.DROP_TABLE]),
        (TableUnpublished("ALTER PUBLICATION", 1, "public", "t"), TABLE, []),
        (replace(MOOD, labels=(EnumLabel(8, "blue"),)), MOOD, [DefinitionKind.ENUM]),
        (replace(MOOD, name="feeling"), MOOD, [DefinitionKind.ENUM]),
        (replace(MOOD, tag="note"), MOOD, []),
        (MOOD, None, []),
        (DefinitionUnknown("ALTER TABLE", "XX000"), None, [DefinitionKind.UNKNOWN]),
    ],
)
def test_a_definition_is_of_kinds(event: DefinitionEvent, was: Defined | None, kinds: list[DefinitionKind]) -> None:
    assert kinds_of(PublishedDefinition(event, was)) == kinds


def test_a_partition_that_was_attached_without_rows_concerns_nobody() -> None:
    attached = TableDefined("ALTER TABLE", replace(TABLE, partitions=(P, partition(2, "p2"))))
    assert kinds_of(PublishedDefinition(attached, TABLE, empty=frozenset({1}))) == [DefinitionKind.ATTACH_PARTITION]
    assert kinds_of(PublishedDefinition(attached, TABLE, empty=frozenset({1, 2}))) == []


def test_a_table_is_known_to_policies_by_the_name_that_it_had() -> None:
    renamed = PublishedDefinition(TableDefined("ALTER TABLE", replace(TABLE, name="u")), TABLE)
    assert table_of(renamed) == ("public", "t")
    assert table_of(PublishedDefinition(renamed.event, None)) == ("public", "u")
    assert table_of(PublishedDefinition(MOOD, None)) is None

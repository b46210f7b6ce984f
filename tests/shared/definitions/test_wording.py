"""What people read of a definition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.definitions.wording import in_words
from pgsluice.shared.wire.definition import (
    DefinitionEvent,
    DefinitionUnknown,
    EnumLabel,
    TableDefined,
    TableGone,
    TablePublished,
    TableRewritten,
    TableUnpublished,
    TypeDefined,
)
from pgsluice.shared.wire.published_definition import Defined, PublishedDefinition
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, partition, with_columns

UNPUBLISHED = replace(TABLE, is_published=False)
MOOD = TypeDefined("ALTER TYPE", 7, "public", "mood", "e", "", (EnumLabel(8, "sad"), EnumLabel(9, "glad")))
REKEYED = with_columns(replace(ID, primary_key_position=2), replace(NOTE, primary_key_position=1), identity_columns=(1, 2))


def altered(now: object) -> TableDefined:
    return TableDefined("ALTER TABLE", now)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "was", "words"),
    [
        (altered(with_columns(ID, NOTE, column(3, "more", missing="secret"))), TABLE, ["added column more text"]),
        (altered(with_columns(ID)), TABLE, ["dropped column note"]),
        (altered(with_columns(ID, replace(NOTE, name="remark"))), TABLE, ["renamed column note to remark"]),
        (altered(with_columns(ID, replace(NOTE, type_oid=17, type_name="bytea"))), TABLE, []),
        (
            altered(with_columns(ID, replace(NOTE, type_oid=17, type_name="bytea", not_null=True))),
            TABLE,
            ["altered the type of note from text to bytea", "set NOT NULL of note"],
        ),
        (altered(TABLE), with_columns(ID, replace(NOTE, not_null=True)), ["dropped NOT NULL of note"]),
        (altered(with_columns(ID, replace(NOTE, is_published=False))), TABLE, ["dropped column note"]),
        (altered(TABLE), with_columns(ID, replace(NOTE, is_published=False)), ["published column note text"]),
        (altered(replace(TABLE, schema="shop", name="u")), TABLE, ["renamed the table from public.t to shop.u"]),
        (altered(REKEYED), TABLE, ["altered the key: primary key (note, id)"]),
        (
            altered(with_columns(replace(ID, primary_key_position=None), NOTE, identity_columns=())),
            TABLE,
            ["altered the key: no primary key"],
        ),
        (altered(replace(TABLE, identity_columns=(2,))), TABLE, ["altered the key: primary key (id), rows known by (note)"]),
        (altered(replace(TABLE, partitions=(partition(1, "p"),))), TABLE, ["attached partition public.p"]),
        (altered(TABLE), replace(TABLE, partitions=(partition(1, "p"),)), ["detached partition public.p"]),
        (altered(TABLE), TABLE, ["nothing that rows carry"]),
        (altered(TABLE), None, ["described the table for the first time"]),
        (altered(UNPUBLISHED), TABLE, ["described the table, which is not published"]),
        (TablePublished("ALTER PUBLICATION", TABLE), UNPUBLISHED, ["it is published now"]),
        (TableUnpublished("ALTER PUBLICATION", 1, "public", "t"), TABLE, ["it is not published any more"]),
        (TableGone("DROP TABLE", 1, "public", "t"), TABLE, ["dropped the table"]),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 6), TABLE, ["rewrote the table (a default for each row, a type)"]),
        (TableRewritten("ALTER TABLE", 1, "public", "t", 64), TABLE, ["rewrote the table (reason 64)"]),
        (MOOD, None, ["described the type for the first time"]),
        (MOOD, MOOD, ["nothing that rows carry"]),
        (
            replace(MOOD, name="state", labels=(EnumLabel(8, "blue"), EnumLabel(9, "glad"), EnumLabel(10, "so"))),
            MOOD,
            ["renamed the type from public.mood to public.state", "added 1 label to the type", "renamed 1 label of the type"],
        ),
        (DefinitionUnknown("ALTER TABLE", "XX000"), None, ["the source could not describe its effect (SQLSTATE XX000)"]),
    ],
)
def test_a_definition_is_told_in_words(event: DefinitionEvent, was: Defined | None, words: list[str]) -> None:
    expected = words or ["altered the type of note from text to bytea"]
    assert in_words(PublishedDefinition(event, was)) == expected


def test_no_value_is_among_the_words() -> None:
    labelled = replace(MOOD, labels=(EnumLabel(8, "label of a secret"), EnumLabel(11, "another")))
    added = altered(with_columns(ID, NOTE, column(3, "more", missing="secret")))
    for event, was in ((labelled, MOOD), (added, TABLE)):
        said = " ".join(in_words(PublishedDefinition(event, was)))
        assert "secret" not in said
        assert "another" not in said

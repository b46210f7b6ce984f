"""A target of a random schema: the same tables, foreign keys that may act otherwise, and what only the target has.

``own`` is a column of every table, ``own_…`` are tables that refer to replicated rows, ``fired`` is what ordinary triggers write.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.foreign_keys.random_schema import ACTIONS, COUNTER_STATEMENTS, DEFERRABILITIES, ForeignKey, RandomSchema, RandomTable

_TRIGGERS = """
CREATE TABLE fired (name text, operation text);
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.fired VALUES (TG_TABLE_NAME, TG_OP);
    RETURN NULL;
END $$;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.touched := NEW.touched + 1;
    RETURN NEW;
END $$;
"""

_YIELDING = ("CASCADE", "SET NULL")
"""What refuses nothing: of a target whose own tables follow."""


@dataclass(frozen=True)
class RandomTwin:
    """``foreign_keys`` are those between replicated tables."""

    schema: RandomSchema
    foreign_keys: Sequence[ForeignKey]
    own: Sequence[tuple[RandomTable, ForeignKey]]

    @classmethod
    def of(cls, schema: RandomSchema, choose: random.Random) -> RandomTwin:
        """A fifth of the foreign keys is left out, and of the others more or fewer act otherwise."""
        share = choose.choice((0, 0.25, 0.6))
        kept = [each for each in schema.foreign_keys if choose.random() < 0.8]
        foreign_keys = [each.acting_otherwise(choose) if choose.random() < share else each for each in kept]
        actions = choose.choice((ACTIONS, _YIELDING, _YIELDING))
        own = [(table, _own(table, actions, choose)) for table in schema.tables if choose.random() < 0.4]
        return cls(schema, foreign_keys, own)

    def statements(self) -> str:
        """Makes it at the target."""
        more = ", own text DEFAULT 'fresh', touched int NOT NULL DEFAULT 0, own_number serial"
        made = [table.statement(more) for table in self.schema.tables]
        made += [_TRIGGERS.strip().rstrip(";"), *COUNTER_STATEMENTS]
        for table, foreign_key in self.own:
            columns = [f"ref_{name} {type_name}" for name, type_name in table.key]
            made.append(f"CREATE TABLE {foreign_key.table} (id serial PRIMARY KEY, of_born bigint, {', '.join(columns)})")
        for table in self.schema.tables:
            if table.is_full:
                made.append(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
            made.append(f"CREATE TRIGGER touch BEFORE UPDATE ON {table.name} FOR EACH ROW EXECUTE FUNCTION touch()")
            made.append(
                f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table.name}"
                " FOR EACH ROW EXECUTE FUNCTION note_change()"
            )
        made += [each.statement() for each in self.foreign_keys]
        made += [foreign_key.statement() for _, foreign_key in self.own]
        return "; ".join(made)


def _own(table: RandomTable, actions: Sequence[str], choose: random.Random) -> ForeignKey:
    name = f"own_{table.name}"
    return ForeignKey(
        f"{name}_ref",
        name,
        [f"ref_{column}" for column in table.key_columns],
        table.name,
        table.key_columns,
        choose.choice(actions),
        choose.choice(actions),
        choose.choice(DEFERRABILITIES),
    )

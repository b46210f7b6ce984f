"""Messages that hypothesis makes: any single one, and streams in an order in which a server could send them."""

from __future__ import annotations

from hypothesis import strategies as st

from pgsluice.shared.pgoutput.messages import (
    NO_OLD_ROW,
    OLD_KEY,
    OLD_ROW,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    PgoutputMessage,
    Relation,
    RelationColumn,
    Row,
    Truncate,
    Type,
    Update,
)
from pgsluice.shared.wire.position import LSN
from pgsluice.shared.wire.table import UNCHANGED, ReplicaIdentity

u32 = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1).map(LSN)
moments = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
schemas = names.filter(bool)
values = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=20), st.sampled_from([b"", b"t\0\0\0\1x", bytes(300)]))
rows = st.lists(values, max_size=6).map(tuple)
old_kinds = st.sampled_from([OLD_KEY, OLD_ROW])

columns = st.builds(RelationColumn, st.booleans(), names, u32, st.integers(-(2**31), 2**31 - 1))
relations = st.builds(Relation, u32, schemas, names, st.sampled_from(ReplicaIdentity), st.lists(columns, max_size=5).map(tuple))
logical_messages = st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=20))
types = st.builds(Type, u32, schemas, names)
origins = st.builds(Origin, lsns, names)

messages: st.SearchStrategy[PgoutputMessage] = st.one_of(
    st.builds(Begin, lsns, moments, u32),
    st.builds(Commit, st.integers(0, 255), lsns, lsns, moments),
    origins,
    logical_messages,
    relations,
    types,
    st.builds(Insert, u32, rows),
    st.builds(Update, u32, st.just(NO_OLD_ROW), st.just(()), rows),
    st.builds(Update, u32, old_kinds, rows, rows),
    st.builds(Delete, u32, old_kinds, rows),
    st.builds(Truncate, st.booleans(), st.booleans(), st.lists(u32, max_size=4).map(tuple)),
)


@st.composite
def streams(draw: st.DrawFn) -> list[PgoutputMessage]:
    """Relations of distinct oids, then transactions of changes to them, the last of which may be open."""
    described = draw(st.lists(relations, min_size=1, max_size=3, unique_by=lambda relation: relation.oid))
    stream: list[PgoutputMessage] = [*described]
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.builds(Begin, lsns, moments, u32))
        stream += [begin, *draw(st.lists(_anything_inside(described), max_size=10))]
        stream.append(Commit(0, begin.final_lsn, LSN(0), begin.committed_at))
    return stream if draw(st.booleans()) else stream[:-1]


def _anything_inside(described: list[Relation]) -> st.SearchStrategy[PgoutputMessage]:
    oids = [relation.oid for relation in described]
    truncates = st.builds(
        Truncate, st.booleans(), st.booleans(), st.lists(st.sampled_from(oids), min_size=1, unique=True).map(tuple)
    )
    runs = st.one_of([_changes(relation) for relation in described])
    return st.one_of(runs, runs, runs, truncates, types, origins, logical_messages, st.sampled_from(described))


def _changes(relation: Relation) -> st.SearchStrategy[PgoutputMessage]:
    row: st.SearchStrategy[Row] = st.tuples(*[values for _ in relation.columns])
    return st.one_of(
        st.builds(Insert, st.just(relation.oid), row),
        st.builds(Update, st.just(relation.oid), st.just(NO_OLD_ROW), st.just(()), row),
        st.builds(Update, st.just(relation.oid), old_kinds, row, row),
        st.builds(Delete, st.just(relation.oid), old_kinds, row),
    )

"""Row security of the target: no policy hides a row from a change."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, insert, table, update
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.postgres import findings
from tests.worker.sinks.postgres.conftest import Target
from tests.worker.sinks.settings import worker_settings

T = table("public.t", "id bigint", "note text", "large text")
MAY_READ_AND_INSERT = "CREATE POLICY r ON t FOR SELECT USING (true); CREATE POLICY i ON t FOR INSERT WITH CHECK (true)"


@pytest.fixture
def role(target: Target, worker_role: str) -> str:
    target.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, note text, large text); GRANT ALL ON t TO {worker_role}")
    return worker_role


def check_of(target: Target) -> list[tuple[str, ...]]:
    found = findings.find(worker_settings("orders"), target.settings, Incoming([T]))
    return [each.statements for each in found if each.check == "target-row-security"]


def test_a_policy_that_comes_while_rows_are_applied_loses_no_update(target: Target, role: str) -> None:
    target.apply(insert(T, b"1", b"a", b"x"))
    target.execute(f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; {MAY_READ_AND_INSERT}")
    messages = target.messages([update(T, b"1", b"b", UNCHANGED)])
    cure = f'ALTER ROLE "{role}" BYPASSRLS'
    with pytest.raises(TerminalError, match=r"row security of table 'public\.t'") as raised:
        target.commit([messages])
    assert raised.value.statements == (cure,)
    assert check_of(target) == [(cure,)]
    target.execute(cure)
    target.commit([messages])
    assert target.table("public", "t") == [("1", "b", "x")]
    assert check_of(target) == []
    assert list(target.sink.missed()) == []


def test_a_copy_into_a_table_with_policies_is_refused_until_the_role_is_a_member_of_its_owner(target: Target, role: str) -> None:
    target.execute(f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; {MAY_READ_AND_INSERT}; CREATE ROLE {role}_owner")
    target.execute(f"ALTER TABLE t OWNER TO {role}_owner")
    with pytest.raises(TerminalError, match=r"row security of table 'public\.t'"):
        apply_copied(target.sink, [[copied(1, T, (b"1", b"a", b"x"))]])
    target.execute(f"GRANT {role}_owner TO {role}")
    apply_copied(target.sink, [[copied(1, T, (b"1", b"a", b"x"))]])
    assert target.table("public", "t") == [("1", "a", "x")]
    target.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
    assert len(check_of(target)) == 1
    target.execute(f"DROP TABLE t; DROP ROLE {role}_owner")

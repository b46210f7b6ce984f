"""What somebody else wrote meanwhile is neither replaced nor deleted."""

from __future__ import annotations

from typing import Any, Literal, cast

import pytest

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_store import DocumentStore
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.server.access.principal import Principal, Role
from pgsluice.console.server.endpoint_table import Call
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.revisions import delete_named


class OvertakenStore(DocumentStore[GroupDocument]):
    """Somebody replaces a document as soon as its revision was looked up."""

    async def revision(self, name: str) -> int | None:
        found = await super().revision(name)
        assert await self.put(GroupDocument(name, {"group": name, "tables": "theirs"}), "somebody", found)
        return found


def call(revision: int | Literal["*"] | None) -> Call:
    return Call(cast(Any, None), Principal("ours", Role.ADMIN, "token"), {}, None, None, revision, "request")


async def test_a_document_that_is_replaced_while_it_is_being_deleted_stays(bucket: ControlBucket, group: str) -> None:
    store, overtaken = DocumentStore(bucket, GroupDocument), OvertakenStore(bucket, GroupDocument)
    assert await store.put(GroupDocument(group, {"group": group, "tables": "ours"}), "ours", None)
    with pytest.raises(Problem) as refused:
        await delete_named(call("*"), overtaken, group, "the document")
    assert refused.value.kind is ProblemKind.STALE
    left = await store.find(group)
    assert left is not None
    assert left.document.settings == {"group": group, "tables": "theirs"}
    assert await delete_named(call(left.revision), store, group, "the document") == left.revision
    assert await delete_named(call("*"), store, group, "the document") is None

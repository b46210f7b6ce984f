"""Documents over the API: who replaces one names the revision that they have read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.console.control_records import write_record
from tests.console.server.served import Served
from tests.servers import NatsServer


def text(group: str, tables: str) -> dict[str, str]:
    return {"yaml": f"group: {group}\ntables: [{tables}]\npassword: ${{SOURCE_PASSWORD}}\n"}


def test_of_two_writers_with_one_etag_one_wins(served: Served) -> None:
    with served.client() as client:
        path = "/groups/doc-race/document"
        created = client.put(path, json=text("doc-race", "a"))
        assert (created.status_code, created.headers["location"]) == (201, "/api/v1/groups/doc-race/document")
        etag = created.headers["etag"]
        for tables in ("b", "c", "d", "e", "f"):

            def put(n: int, tables: str = tables, etag: str = etag) -> int:
                return client.put(path, json=text("doc-race", f"{tables}{n}"), headers={"If-Match": etag}).status_code

            with ThreadPoolExecutor(4) as pool:
                assert sorted(pool.map(put, range(4))) == [200, 412, 412, 412]
            etag = client.get(path).headers["etag"]
        history = client.get(f"{path}/history").json()["documents"]
        assert len(history) == 6
        assert history[-1]["revision"] == created.json()["revision"]


def test_what_is_there_is_not_replaced_blindly(served: Served) -> None:
    with served.client() as client:
        path = "/groups/doc-blind/document"
        assert client.get(path).status_code == 404
        first = client.put(path, json=text("doc-blind", "a"))
        assert client.put(path, json=text("doc-blind", "b")).status_code == 428
        assert client.put(path, json=text("doc-blind", "b"), headers={"If-Match": '"1x"'}).status_code == 412
        assert client.put(path, json=text("doc-blind", "b"), headers={"If-Match": "*"}).status_code == 200
        assert client.delete(path).status_code == 428
        assert client.delete(path, headers={"If-Match": first.headers["etag"]}).status_code == 412
        assert client.delete(path, headers={"If-Match": "*"}).status_code == 204
        assert client.get(path).status_code == 404
        again = client.put(path, json=text("doc-blind", "c"))
        assert again.status_code == 201


def test_one_that_cannot_be_read_is_replaced_or_deleted_as_its_remedy_says(served: Served, nats_server: NatsServer) -> None:
    with served.client() as client:
        path = "/groups/doc-damaged/document"
        client.put(path, json=text("doc-damaged", "a"))
        write_record(nats_server, "group.doc-damaged", b"{}")
        assert "apply the document again, or delete it" in client.get(path).json()["remedy"]
        assert client.put(path, json=text("doc-damaged", "b")).status_code == 428
        assert client.put(path, json=text("doc-damaged", "b"), headers={"If-Match": "*"}).status_code == 200
        write_record(nats_server, "group.doc-damaged", b"{}")
        planned = client.post("/plan", json={"documents": [text("doc-damaged", "b")["yaml"]]}).json()["documents"]
        assert [(each["action"], each["changes"][0]["before"]) for each in planned] == [("change", "")]
        assert client.delete(path, headers={"If-Match": "*"}).status_code == 204
        assert client.get(path).status_code == 404


def test_documents_are_planned_applied_and_exported(served: Served) -> None:
    with served.client() as client:
        body = {"documents": [text("doc-a", "x")["yaml"] + "---\n" + text("doc-b", "y")["yaml"]]}
        planned = client.post("/plan", json=body).json()["documents"]
        assert [(each["group"], each["action"]) for each in planned] == [("doc-a", "create"), ("doc-b", "create")]
        key = {"Idempotency-Key": "apply-ab"}
        first = client.post("/apply", json=body, headers=key)
        assert client.post("/apply", json=body, headers=key).text == first.text
        assert [each["action"] for each in client.post("/plan", json=body).json()["documents"]] == ["none", "none"]
        exported = client.get("/export")
        assert exported.headers["content-type"].startswith("application/yaml")
        assert 'group: "doc-a"' in exported.text
        assert "${SOURCE_PASSWORD}" in exported.text


def test_a_document_with_a_secret_is_refused_unrepeated(served: Served) -> None:
    with served.client(served.token("tells-secrets", "admin", values=True)) as client:
        body = {"yaml": "group: doc-secret\npassword: m4rk3r\n"}
        refused = client.put("/groups/doc-secret/document", json=body)
        assert (refused.status_code, "m4rk3r" in refused.text) == (422, False)
        entries = client.get("/audit", params={"limit": "500", "refused": "true"}).text + served.process.log()
        assert "m4rk3r" not in entries
        assert "doc-secret" in entries
        assert client.put("/groups/other/document", json=text("doc-x", "a")).json()["where"] == "yaml"


def test_only_admins_say_what_groups_are(served: Served) -> None:
    with served.client(served.token("plan-only", "operator")) as client:
        body = {"documents": [text("doc-role", "a")["yaml"]]}
        assert client.post("/plan", json=body).status_code == 200
        assert client.post("/apply", json=body).status_code == 403
        assert client.put("/groups/doc-role/document", json=text("doc-role", "a")).status_code == 403

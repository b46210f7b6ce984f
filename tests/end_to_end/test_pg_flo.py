"""A group of pg_flo's moves here: its variables, its rules and routing files as they are, and a consumer that reads its lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.once import APPLY_DEADLINE_S, REPLICATE_DEADLINE_S, Outcome, succeed
from tests.pg_flo_rules import ROOTLESS_RULES
from tests.servers import Database, NatsServer, PgsluiceProcess

SOURCE_TABLES = """
CREATE TABLE users (id bigserial PRIMARY KEY, username varchar(50) NOT NULL, email varchar(100) NOT NULL, metadata jsonb);
CREATE TABLE orders (id bigserial PRIMARY KEY, user_id bigint REFERENCES users, total_amount numeric(15,2), items jsonb);
CREATE TABLE products (id bigserial PRIMARY KEY, name varchar(100) NOT NULL, stock jsonb, tags text[], price float8,
    at timestamptz, photo bytea, long text);
ALTER TABLE products ALTER long SET STORAGE EXTERNAL;
"""
CHANGES = """
INSERT INTO users (username, email) VALUES ('john_doe', 'john@example.com'), ('jane_smith', 'jane@example.com');
INSERT INTO orders (user_id, total_amount, items) VALUES (1, 50.00, '[{"id": 1}]'), (1, 150.00, '[{"id": 3}, {"id": 4}]');
INSERT INTO products (name, stock, tags, price, at, photo, long) VALUES
    ('Widget', '{"quantity": 75}', '{electronic,"pre,mium"}', 'NaN', '2024-12-16 10:00:00.5Z', '\\x00ff', repeat('x', 5000)),
    ('Gadget', '{"quantity": 50}', '{tool}', 9.5, NULL, NULL, NULL);
UPDATE users SET email = 'updated@example.com' WHERE id = 1;
UPDATE products SET name = 'Widget 2' WHERE id = 1;
DELETE FROM orders WHERE id = 2;
"""

RULES = f"""\
{ROOTLESS_RULES}\
products:
  - type: transform
    column: inventory
    parameters:
      operation: jsonb_extract_path
      path: stock
"""
ROUTING = """\
users:
  source_table: users
  destination_table: customers
  column_mappings:
    - source: id
      destination: customer_id
    - source: username
      destination: customer_name
  operations:
    - INSERT
    - UPDATE

orders:
  source_table: orders
  destination_table: transactions
  column_mappings:
    - source: id
      destination: transaction_id
  operations:
    - INSERT
    - UPDATE
    - DELETE
"""
"""In the shape of pg_flo's routing test: rules without a root, with transforms that it does not have."""


def selected(lines: list[dict[str, Any]], **wanted: object) -> list[dict[str, Any]]:
    """``jq 'select(.Type == "INSERT")'``."""
    return [line for line in lines if all(line[key] == value for key, value in wanted.items())]


def test_variables_files_and_consumers_of_pg_flo_go_on(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    rules, routing, output = tmp_path / "rules.yml", tmp_path / "routing.yml", tmp_path / "out"
    rules.write_text(RULES)
    routing.write_text(ROUTING)
    both = {"PG_FLO_GROUP": group, "PG_FLO_NATS_URL": nats_server.url}
    source = source_database.settings
    replicator = both | {
        "PG_FLO_HOST": source.host,
        "PG_FLO_PORT": str(source.port),
        "PG_FLO_DBNAME": source.dbname,
        "PG_FLO_USER": source.user,
        "PG_FLO_PASSWORD": source.password or "unused",
        "PG_FLO_TABLES": "users orders,products",
        "PG_FLO_STREAM": "true",
    }
    worker = both | {
        "PG_FLO_FILE_OUTPUT_DIR": str(output),
        "PG_FLO_RULES_CONFIG": str(rules),
        "PG_FLO_ROUTING_CONFIG": str(routing),
        "PGSLUICE_SPARK": '{"master": "local[2]", "memory": "512m"}',
    }

    def replicate() -> Outcome:
        process = PgsluiceProcess("replicator", "--until-lsn", "current", env=replicator)
        return succeed(Outcome(process, REPLICATE_DEADLINE_S))

    source_database.execute(SOURCE_TABLES)
    started = replicate()
    assert "variables of pg_flo are read: rename them" in started.log
    assert "PGSLUICE_TABLES" in started.log
    source_database.execute(CHANGES)
    replicate()
    process = PgsluiceProcess("worker", "file", "--format", "pg-flo", "--until-sequence", "current", env=worker)
    outcome = succeed(Outcome(process, APPLY_DEADLINE_S))
    assert "there is no 'tables:' above the tables" in outcome.log
    assert outcome.log.count("is left out: 'operation: ") == 3

    lines = [json.loads(line) for path in output.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert [len(selected(lines, Type=kind)) for kind in ("INSERT", "UPDATE", "DELETE")] == [5, 2, 1]
    (updated,) = selected(lines, Type="UPDATE", Table="customers")
    assert updated["NewTuple"]["email"] == "updated@example.com"
    assert updated["ReplicationKey"] == {"Type": "PRIMARY KEY", "Columns": ["customer_id"]}
    (order,) = selected(lines, Type="INSERT", Table="transactions")
    assert (order["NewTuple"]["transaction_id"], order["NewTuple"]["total_amount"]) == (2, "150.00")
    (deleted,) = selected(lines, Type="DELETE")
    assert (deleted["Table"], deleted["OldTuple"]) == ("transactions", {"transaction_id": 2})
    widget, _ = selected(lines, Type="INSERT", Table="products")
    values = {key: widget["NewTuple"][key] for key in ("stock", "tags", "price", "at", "photo")}
    assert values == {
        "stock": {"quantity": 75},
        "tags": ["electronic", "pre,mium"],
        "price": "NaN",
        "at": "2024-12-16T10:00:00.5Z",
        "photo": "AP8=",
    }
    (renamed,) = selected(lines, Type="UPDATE", Table="products")
    assert renamed["NewTuple"]["name"] == "Widget 2"
    assert (renamed["Unchanged"], "long" in renamed["NewTuple"]) == (["long"], False)

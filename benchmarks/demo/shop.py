"""The shop: its tables, and writers that keep it busy.

The tables hold what replication gets wrong most easily: composite keys that change, numerics, jsonb, timestamps, long texts that
an update does not touch (PostgreSQL does not send these again), and foreign keys that only transactions applied whole respect.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psycopg

from tests.servers import Database

TABLES = ("customers", "products", "orders", "order_lines")
PRODUCTS = 500
FIRST_CUSTOMERS = 29_500
FIRST_ORDERS = 60_000
FIRST_ROWS = 300_000
"""In all four tables: an order has from one to six lines, three and a half on average."""

_SCHEMA = """
CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    address jsonb NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE products (
    sku text PRIMARY KEY,
    price numeric(10, 2) NOT NULL,
    stock integer NOT NULL,
    attributes jsonb,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    description text NOT NULL
);
ALTER TABLE products ALTER description SET STORAGE EXTERNAL;
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status text NOT NULL DEFAULT 'open',
    total numeric(12, 2) NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    shipped_at timestamptz
);
CREATE TABLE order_lines (
    order_id bigint REFERENCES orders,
    line smallint,
    sku text NOT NULL REFERENCES products,
    quantity integer NOT NULL,
    price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
"""

_CITIES = ("Zürich", "São Paulo", "Łódź", "東京", "Reykjavík", "Cork")
_NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Tony", "Leslie", "Frances", "Niklaus")

_FILL = (
    """
INSERT INTO products (sku, price, stock, description)
SELECT 'SKU-' || lpad(n::text, 5, '0'), (100 + random() * 89900)::int / 100.0, 100, d.text
FROM generate_series(0, %(products)s - 1) n,
     LATERAL (SELECT string_agg(md5(n || '-' || piece), '') AS text FROM generate_series(1, 190) piece) d
""",
    """
INSERT INTO customers (name, address, registered_at)
SELECT (%(names)s::text[])[1 + n %% 8] || ' ' || n,
       jsonb_build_object('city', (%(cities)s::text[])[1 + n %% 6], 'street', n %% 99 || ' Main Street', 'floors', NULL),
       clock_timestamp() - n * interval '1 minute'
FROM generate_series(1, %(customers)s) n
""",
    """
INSERT INTO orders (customer_id, status, total, placed_at, shipped_at)
SELECT 1 + n %% %(customers)s, 'shipped', (1000 + random() * 99000)::int / 100.0, placed_at, placed_at + interval '1 day'
FROM generate_series(1, %(orders)s) n, LATERAL (SELECT clock_timestamp() - n * interval '1 minute' AS placed_at) p
""",
    """
INSERT INTO order_lines
SELECT id, line, 'SKU-' || lpad(((id * 7 + line * 13) %% %(products)s)::text, 5, '0'), 1 + id %% 5, total / 10
FROM orders, generate_series(1, 1 + id::int %% 6) line
""",
)

Connection = psycopg.Connection[tuple[Any, ...]]


def create_tables(source: Database) -> None:
    source.execute(_SCHEMA)


def fill(source: Database) -> int:
    """The shop before it opens: FIRST_ROWS rows, whose number it returns."""
    values = {
        "products": PRODUCTS,
        "customers": FIRST_CUSTOMERS,
        "orders": FIRST_ORDERS,
        "names": list(_NAMES),
        "cities": list(_CITIES),
    }
    with source.connect(autocommit=False) as connection:
        return sum(connection.execute(statement, values).rowcount for statement in _FILL)


def _customer() -> tuple[str, str]:
    address = {
        "city": random.choice(_CITIES),
        "street": f"{random.randrange(1, 99)} Main Street",
        "floors": [1, random.randrange(9), None],
    }
    return f"{random.choice(_NAMES)} {random.randrange(10_000)}", json.dumps(address)


class Writer:
    """One connection that keeps the shop busy from a thread of its own, until ``stop``; ``changes`` counts changed rows.

    It changes only orders it placed, and locks products in the order of their keys, so that writers never deadlock.
    """

    def __init__(self, source: Database, transactions_per_s: float) -> None:
        self._source = source
        self._interval_s = 1 / transactions_per_s
        self._open_orders: list[int] = []
        self._stop = threading.Event()
        self._error: psycopg.Error | None = None
        self._thread = threading.Thread(target=self._run, name="shop writer")
        self._weighted: tuple[tuple[Callable[[Connection], int], int], ...] = (
            (self._place_order, 60),
            (self._ship_order, 14),
            (self._renumber_lines, 8),
            (self._cancel_order, 12),
            (self._register_customer, 5),
            (self._restock, 1),
        )
        self.changes = 0
        self.transactions = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the transaction in hand is committed; raises what ended the writer early."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        actions, weights = zip(*self._weighted, strict=True)
        start = time.monotonic()
        try:
            with self._source.connect() as connection:
                for due in itertools.count(start, self._interval_s):
                    if self._stop.wait(max(0.0, due - time.monotonic())):
                        return
                    with connection.transaction():
                        changes = random.choices(actions, weights)[0](connection)
                    self.changes += changes
                    self.transactions += 1
        except psycopg.Error as error:
            self._error = error

    def _register_customer(self, connection: Connection) -> int:
        return connection.execute("INSERT INTO customers (name, address) VALUES (%s, %s)", _customer()).rowcount

    def _place_order(self, connection: Connection) -> int:
        quantities = {f"SKU-{random.randrange(PRODUCTS):05}": random.randrange(1, 5) for _ in range(random.randrange(1, 7))}
        skus = list(quantities)
        locked = connection.execute("SELECT sku, price FROM products WHERE sku = ANY(%s) ORDER BY sku FOR NO KEY UPDATE", [skus])
        prices: dict[str, Decimal] = dict(locked.fetchall())
        total = sum(prices[sku] * quantity for sku, quantity in quantities.items())
        order = connection.execute(
            "INSERT INTO orders (customer_id, total) VALUES (%s, %s) RETURNING id", [random.randint(1, FIRST_CUSTOMERS), total]
        ).fetchone()
        assert order is not None
        for line, (sku, quantity) in enumerate(quantities.items(), start=1):
            connection.execute(
                "INSERT INTO order_lines VALUES (%s, %s, %s, %s, %s)", [order[0], line, sku, quantity, prices[sku]]
            )
            connection.execute(
                "UPDATE products SET stock = stock - %s, changed_at = clock_timestamp() WHERE sku = %s", [quantity, sku]
            )
        self._open_orders.append(order[0])
        return 1 + 2 * len(quantities)

    def _ship_order(self, connection: Connection) -> int:
        if not self._open_orders:
            return self._register_customer(connection)
        order = self._open_orders.pop(random.randrange(len(self._open_orders)))
        return connection.execute(
            "UPDATE orders SET status = 'shipped', shipped_at = clock_timestamp() WHERE id = %s", [order]
        ).rowcount

    def _renumber_lines(self, connection: Connection) -> int:
        """Changes the key of every line of an order."""
        if not self._open_orders:
            return self._register_customer(connection)
        order = random.choice(self._open_orders)
        step = random.choice((100, 200, 300))
        return connection.execute(
            "UPDATE order_lines SET line = line %% 100 + %s WHERE order_id = %s AND line / 100 * 100 <> %s", [step, order, step]
        ).rowcount

    def _cancel_order(self, connection: Connection) -> int:
        if not self._open_orders:
            return self._register_customer(connection)
        order = self._open_orders.pop(random.randrange(len(self._open_orders)))
        lines = connection.execute("DELETE FROM order_lines WHERE order_id = %s", [order]).rowcount
        return lines + connection.execute("DELETE FROM orders WHERE id = %s", [order]).rowcount

    def _restock(self, connection: Connection) -> int:
        """A larger transaction: every product that runs low."""
        connection.execute("SELECT FROM products ORDER BY sku FOR NO KEY UPDATE")
        return connection.execute(
            "UPDATE products SET stock = stock + 200, attributes = jsonb_build_object('restocked', stock),"
            " changed_at = clock_timestamp() WHERE stock < 100"
        ).rowcount

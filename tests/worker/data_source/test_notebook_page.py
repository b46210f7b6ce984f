"""The example of docs/how-to/notebook.md, in a Spark session that is nobody's but the reader's, shows what stands below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.data_source.conftest import Feed

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "notebook.md").read_text()
BLOCKS = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
ORDERS = (
    "INSERT INTO orders VALUES (1, 'Alice', 12.50), (2, 'Bob', 8.00)",
    "INSERT INTO orders VALUES (3, 'Carol', 99.90)",
    "UPDATE orders SET total = 2.50 WHERE id = 1",
    "DELETE FROM orders WHERE id = 3",
)


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_the_example_shows_what_stands_below_it(feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10, 2))")
    feed.publish(*ORDERS)
    script = "".join(f"{code}\nprint('---')\n" for code, _ in BLOCKS)
    script = script.replace("nats://localhost:4222", feed.nats.url).replace('"shop"', repr(feed.group))
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    shown = [part.strip() for part in done.stdout.split("---\n")[:-1]]
    assert shown == [expected.strip() for _, expected in BLOCKS]
    assert len(BLOCKS) == PAGE.count("```text\n"), "the page shows an output that follows no block of Python"

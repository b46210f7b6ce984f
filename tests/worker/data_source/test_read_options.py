"""What cannot be read is said in one sentence, which holds no value and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.servers import NatsServer
from tests.worker.data_source.conftest import Feed, run


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"form": "beginning"}, "there is no option 'form': did you mean 'from'?"),
        ({"group": ""}, "group is not set: give the option 'group', for example orders"),
        ({"group": "No Group"}, "group 'No Group' is not a valid name"),
        ({"nats-url": "http://user:s3cret@host"}, "nats-url (given) is not a list of NATS URLs"),
        ({"nats-token": "s3cret"}, "nats-user and nats-token are both given"),
        ({"from": "yesterday"}, "from 'yesterday' (given) is neither 'beginning' nor a sequence nor a time"),
        ({"from": "2026-01-31T09:15:00"}, "from '2026-01-31T09:15:00' (given) has no time zone"),
        ({"from": "9999-01-01T00:00:00Z"}, "is a time that has not come yet"),
        ({"until": "2026-01-31T09:15:00"}, "until '2026-01-31T09:15:00' (given) has no time zone"),
        ({"until": "soon"}, "until 'soon' (given) is neither 'end' nor a sequence nor a time"),
        ({"table": "a", "tables": "b"}, "table and tables are both given: give one of them"),
        ({"table": "public.*"}, "table 'public.*' (given) is a pattern, but one table is needed"),
        ({"tables": "a.b.c"}, "tables 'a.b.c' (given) is not a table"),
        ({"fail-on-data-loss": "perhaps"}, "fail-on-data-loss 'perhaps' (given) is neither true nor false"),
        ({"batch-size": "0"}, "batch-size '0' (given) is not from 1 to 1000000"),
    ],
)
def test_a_wrong_option_is_one_sentence_when_the_reader_is_made(
    spark: SparkSession, nats_server: NatsServer, options: dict[str, str], sentence: str
) -> None:
    given = {"nats-url": nats_server.url, "group": "orders", "nats-user": "app", "nats-password": "s3cret"} | options
    with pytest.raises(PySparkException) as caught:
        spark.read.format("pgsluice").options(**given).load()
    assert sentence in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_group_and_a_table_that_are_not_there_are_named(spark: SparkSession, feed: Feed) -> None:
    with pytest.raises(PySparkException, match=f"there is no stream of changes of group '{feed.group}' at this NATS"):
        feed.rows(spark)
    feed.publish("CREATE TABLE orders (id int PRIMARY KEY)")
    with pytest.raises(PySparkException, match=rf"group '{feed.group}' publishes no table 'order': did you mean 'orders'"):
        feed.read(spark, table="order")
    with pytest.raises(PySparkException, match=r"publishes no table 'public\.order': did you mean 'public\.orders'"):
        feed.read(spark, tables="orders, public.order")
    assert feed.rows(spark) == feed.rows(spark, tables="orders, shop.*") == []


def test_a_broker_that_is_not_there_is_one_sentence_without_a_secret(spark: SparkSession, feed: Feed) -> None:
    feed.options["nats-url"] = "nats://somebody:s3cret@127.0.0.1:1"
    with pytest.raises(PySparkException) as caught:
        feed.rows(spark)
    assert "NATS at 127.0.0.1:1 does not answer" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_schema_and_an_end_that_do_not_fit_are_refused(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(PySparkException, match="the format pgsluice has a fixed schema"):
        spark.read.format("pgsluice").options(**feed.options).schema("id int").load().collect()
    with pytest.raises(PySparkException, match="the option 'until' is for"):
        run(feed.stream(spark, until=3), tmp_path)


def test_no_secret_is_in_a_plan(spark: SparkSession, feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
    feed.read(spark, nats_user="somebody", nats_password="s3cret").explain(True)
    feed.stream(spark, nats_user="somebody", nats_password="s3cret").explain(True)
    plan = capsys.readouterr().out
    assert "pgsluice" in plan
    assert "s3cret" not in plan

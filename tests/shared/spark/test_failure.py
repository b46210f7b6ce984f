"""The sentence about a Spark that does not start."""

from __future__ import annotations

import pytest

from pgsluice.shared.spark.failure import secrets_of, start_error, without_secrets


def test_the_last_twenty_lines_of_spark_are_in_the_error_and_no_place_in_its_code() -> None:
    lines = [text for number in range(30) for text in (f"line {number}", f"\tat org.apache.Spark({number})", "")]
    error = start_error(OSError("the end"), lines)
    head, *shown = error.remedy.split("\n  ")
    assert head.endswith("Spark's last lines:")
    assert shown == [*(f"line {number}" for number in range(11, 30)), "the end"]


def test_a_long_line_of_spark_is_cut() -> None:
    assert len(str(start_error(OSError("x" * 10_000)))) < 1000


def test_an_error_without_a_word_is_named_by_its_type() -> None:
    assert start_error(OSError()).fact == "Spark did not start (OSError)"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("-Djavax.net.ssl.keyStorePassword=hunter2 -Dx=1", "-Djavax.net.ssl.keyStorePassword=*** -Dx=1"),
        ('{"api-key": "hunter 2", "x": 1}', '{"api-key": ***, "x": 1}'),
        ("fs.s3a.secret.key = 'hunter 2' taken", "fs.s3a.secret.key = *** taken"),
        ("TOKEN: hunter2", "TOKEN: ***"),
        ("jdbc:postgresql://ada:hunt@er2@db/shop failed", "jdbc:postgresql://***@db/shop failed"),
        ("bad key hunter2-abc", "bad key ***"),
        ("Unrecognized VM option 'NoSuchOption'", "Unrecognized VM option 'NoSuchOption'"),
    ],
)
def test_a_secret_is_left_out_of_a_line(line: str, shown: str) -> None:
    settings = {
        "spark.hadoop.fs.s3a.access.key": "hunter2-abc",
        "spark.other.token": "hunter2",
        "spark.credentials.enabled": "true",
    }
    assert without_secrets(line, secrets_of(settings)) == shown

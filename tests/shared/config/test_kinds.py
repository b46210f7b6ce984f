"""How values are read from text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgsluice.shared.config.kinds import Kind, Raw, Value, parse, parse_flag_pairs


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (Kind.TEXT, "0123", "0123"),
        (Kind.NUMBER, "0123", 123),
        (Kind.NUMBER, "-1", -1),
        (Kind.SWITCH, "true", True),
        (Kind.SWITCH, "Yes", True),
        (Kind.SWITCH, "1", True),
        (Kind.SWITCH, "OFF", False),
        (Kind.SIZE, "17", 17),
        (Kind.SIZE, "17B", 17),
        (Kind.SIZE, "2KB", 2_000),
        (Kind.SIZE, "2 KiB", 2_048),
        (Kind.SIZE, "64MiB", 64 * 1024**2),
        (Kind.SIZE, "10gib", 10 * 1024**3),
        (Kind.SIZE, "1TB", 10**12),
        (Kind.DURATION, "0", 0.0),
        (Kind.DURATION, "45s", 45.0),
        (Kind.DURATION, "1.5s", 1.5),
        (Kind.DURATION, "24h", 86_400.0),
        (Kind.DURATION, "1h30m", 5_400.0),
        (Kind.DURATION, "7d", 604_800.0),
        (Kind.LIST, "a,b", ("a", "b")),
        (Kind.LIST, " a  b,\tc,", ("a", "b", "c")),
        (Kind.LIST, ("a b", "c,d"), ("a b", "c,d")),
        (Kind.LSN, "16/b374d848", "16/B374D848"),
        (Kind.SERVERS, "nats://a:4222", "nats://a:4222"),
        (Kind.SERVERS, "a, tls://u:p@b:1", "nats://a,tls://u:p@b:1"),
        (Kind.SERVERS, ("a:1", "nats://b"), "nats://a:1,nats://b"),
        (Kind.URL, "https://a.example:8443/b?c=d", "https://a.example:8443/b?c=d"),
        (Kind.URL, "http://[::1]/", "http://[::1]/"),
        (Kind.ADDRESS, "127.0.0.1:9464", "127.0.0.1:9464"),
        (Kind.ADDRESS, "[::1]:0", "[::1]:0"),
        (Kind.PAIRS, {"a": "1"}, {"a": "1"}),
        (Kind.PAIRS, '{"a": "x", "b": 4, "c": 0.10, "d": true}', {"a": "x", "b": "4", "c": "0.10", "d": "true"}),
    ],
)
def test_a_value_is_read_from_its_text(kind: Kind, raw: Raw, value: Value) -> None:
    assert parse(kind, raw) == value
    assert type(parse(kind, raw)) is type(value)


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        (Kind.NUMBER, "abc", "is not a whole number"),
        (Kind.NUMBER, "5432.0", "is not a whole number"),
        (Kind.NUMBER, "1_000", "is not a whole number"),
        (Kind.NUMBER, "٣", "is not a whole number"),
        (Kind.SWITCH, "maybe", "is neither true nor false"),
        (Kind.SIZE, "10G", "is not a size"),
        (Kind.SIZE, "-1", "is not a size"),
        (Kind.SIZE, "1.5GiB", "is not a size"),
        (Kind.DURATION, "24", "is not a duration"),
        (Kind.DURATION, "30m1h", "is not a duration"),
        (Kind.DURATION, "-1s", "is not a duration"),
        (Kind.DURATION, "", "is not a duration"),
        (Kind.DURATION, "36526d", "is longer than 100 years"),
        (Kind.DURATION, f"{'9' * 400}s", "is longer than 100 years"),
        (Kind.LSN, "12345", "is not an LSN"),
        (Kind.SERVERS, "http://a", "is not a list of NATS URLs"),
        (Kind.SERVERS, "nats://", "is not a list of NATS URLs"),
        (Kind.SERVERS, "nats://a:port", "is not a list of NATS URLs"),
        (Kind.SERVERS, "nats://a:99999", "is not a list of NATS URLs"),
        (Kind.SERVERS, "nats://[::1", "is not a list of NATS URLs"),
        (Kind.SERVERS, "nats://a..b", "is not a list of NATS URLs"),
        (Kind.URL, "a.example/b", "is not an HTTP URL"),
        (Kind.URL, "ftp://a/", "is not an HTTP URL"),
        (Kind.URL, "https://", "is not an HTTP URL"),
        (Kind.URL, "https://a:port/", "is not an HTTP URL"),
        (Kind.URL, "https://user:hunter2@a/", "is not an HTTP URL"),
        (Kind.URL, "https://a/b#c", "is not an HTTP URL"),
        (Kind.URL, "https://a/ b", "is not an HTTP URL"),
        (Kind.URL, "https://a/\r\nX: y", "is not an HTTP URL"),
        (Kind.URL, "https://ä/", "is not an HTTP URL"),
        (Kind.ADDRESS, "9464", "is not HOST:PORT"),
        (Kind.ADDRESS, ":9464", "is not HOST:PORT"),
        (Kind.ADDRESS, "::1:9464", "is not HOST:PORT"),
        (Kind.ADDRESS, "host:65536", "is not HOST:PORT"),
        (Kind.ADDRESS, "http://host:80", "is not HOST:PORT"),
        (Kind.PAIRS, "a=1", "is not a JSON object"),
        (Kind.PAIRS, '["a"]', "is not a JSON object"),
        (Kind.PAIRS, '{"a": {}}', "is not a JSON object"),
        (Kind.PAIRS, "[" * 100_000, "is not a JSON object"),
        (Kind.PAIRS, '{"a": null}', "is not a JSON object"),
        (Kind.TEXT, ("a",), "is a list"),
        (Kind.NUMBER, {"a": "1"}, "is a mapping"),
        (Kind.LIST, {"a": "1"}, "is a mapping"),
        (Kind.PAIRS, ("a",), "is a list"),
    ],
)
def test_a_malformed_value_is_refused_with_its_reason(kind: Kind, raw: Raw, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(kind, raw)


def test_a_server_url_is_never_part_of_the_reason() -> None:
    with pytest.raises(ValueError, match="NATS URLs") as raised:
        parse(Kind.SERVERS, "http://user:hunter2@a")
    assert "hunter2" not in str(raised.value)


def test_a_file_is_found_below_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key.pem").touch()
    assert parse(Kind.FILE, "~/key.pem") == str(tmp_path / "key.pem")


def test_a_file_must_be_there_and_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        parse(Kind.FILE, str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="is a directory"):
        parse(Kind.FILE, str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_must_be_readable(tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch(mode=0)
    with pytest.raises(ValueError, match="may not be read"):
        parse(Kind.FILE, str(tmp_path / "key.pem"))


def test_flag_pairs_are_cut_at_the_first_equals_sign() -> None:
    assert parse_flag_pairs(("a=1", "b=x=y", "c=")) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["a", "=a", ""])
def test_a_flag_pair_without_name_or_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not KEY=VALUE"):
        parse_flag_pairs((text,))

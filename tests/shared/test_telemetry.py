"""The log's two forms, and what it keeps quiet about."""

from __future__ import annotations

import json
import logging
import re

import pytest

from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import LogSettings

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

log = telemetry.logger("pgsluice.replicator.session")


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_an_event_is_one_line_of_text_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "text"))
    log.info("slot is ready", slot="pgsluice_orders", lag_bytes=17, rate=0.123456, note="two words", empty="", none=None)
    [line] = lines_of(capsys)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    replicator\.session  slot is ready"
        r'  slot=pgsluice_orders lag_bytes=17 rate=0\.123 note="two words" empty="" none=None',
        line,
    )


def test_an_event_is_one_json_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "json"))
    log.warning("slot is slow", slot="pgsluice_orders", lag_bytes=17, position=complex(1, 2), message="field")
    [line] = lines_of(capsys)
    event = json.loads(line)
    assert event.pop("time").endswith("Z")
    assert event == {
        "level": "WARNING",
        "logger": "replicator.session",
        "message": "slot is slow",
        "slot": "pgsluice_orders",
        "lag_bytes": 17,
        "position": "(1+2j)",
        "message_": "field",
    }


@pytest.mark.parametrize("value", ["a\nb", 'say "x"', "a=b", "tab\there", "\x1b[31m", "\ud800", 2**70])
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_field_value_can_break_a_line(capsys: pytest.CaptureFixture[str], form: str, value: object) -> None:
    telemetry.set_up(LogSettings("INFO", form))
    log.info("event", value=value)
    [line] = lines_of(capsys)
    assert line.isprintable()


def test_percent_signs_in_a_message_stay(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "text"))
    log.info("100 % done, %s left")
    assert lines_of(capsys)[0].endswith("100 % done, %s left")


def test_events_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("WARNING", "text"))
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [line.split()[-1] for line in lines_of(capsys)] == ["c", "d"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_logged_with_its_traceback_and_without_its_text(capsys: pytest.CaptureFixture[str], form: str) -> None:
    telemetry.set_up(LogSettings("INFO", form))
    value = "-".join(["value", "of", "a", "row"])
    try:
        raise KeyError(value) from ValueError(value)
    except KeyError:
        log.exception("unexpected error", type="KeyError")
    text = "\n".join(lines_of(capsys))
    assert "unexpected error" in text
    assert "Traceback (most recent call last):" in text
    assert "test_telemetry.py" in text
    assert "ValueError" in text
    assert "value-of-a-row" not in text


def test_records_of_libraries_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "json"))
    logging.getLogger("some.library").info("hello %s", "you")
    assert json.loads(lines_of(capsys)[0])["message"] == "hello you"


@pytest.mark.parametrize("name", ["py4j.clientserver", "nats.aio.client", "asyncio", "psycopg.pool"])
def test_noisy_libraries_are_heard_from_warning_up(capsys: pytest.CaptureFixture[str], name: str) -> None:
    telemetry.set_up(LogSettings("DEBUG", "text"))
    logging.getLogger(name).info("chatter")
    logging.getLogger(name).warning("trouble")
    assert [line.split()[-1] for line in lines_of(capsys)] == ["trouble"]


def test_setting_up_again_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "text"))
    telemetry.set_up(LogSettings("INFO", "text"))
    log.info("once")
    assert len(lines_of(capsys)) == 1


def test_a_failure_is_one_sentence_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "text"))
    telemetry.report_failure("the slot is lost: drop it", 70)
    assert lines_of(capsys) == ["pgsluice: the slot is lost: drop it"]


def test_a_failure_is_one_object_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.set_up(LogSettings("INFO", "json"))
    telemetry.report_failure("the slot is lost: drop it", 70)
    event = json.loads(lines_of(capsys)[0])
    assert (event["level"], event["message"], event["exit_code"]) == ("ERROR", "the slot is lost: drop it", 70)


@pytest.mark.parametrize("level", ["WARNING", "ERROR"])
def test_a_line_of_a_task_is_logged_as_it_was_there(capsys: pytest.CaptureFixture[str], level: str) -> None:
    telemetry.set_up_task()
    log.info("a step")
    log.warning("a column becomes text", table="public.t", column="c", level="x")
    step, warning = lines_of(capsys)
    telemetry.set_up(LogSettings(level, "json"))
    assert telemetry.relay(step)
    assert telemetry.relay(warning)
    for other in ("24/01/01 WARN Something", '{"time":', '{"time":"x","message":"y"}', '{"a":1}'):
        assert not telemetry.relay(other)
    relayed = [json.loads(line) for line in lines_of(capsys)]
    expected = json.loads(warning) if level == "WARNING" else None
    assert [line | {"time": ""} for line in relayed] == ([expected | {"time": ""}] if expected else [])

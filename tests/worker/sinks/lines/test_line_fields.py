"""A line's fields are read back whatever stands beside them."""

from __future__ import annotations

import pytest

from pgsluice.worker.sinks.lines.line_fields import line_fields


def test_fields_of_a_line_are_what_they_say() -> None:
    line = b'{"position":"0/1:1","key":{"id":7},"after":{"id":7,"note":"a, b: {c} \\"d\\""},"xid":12}\n'
    assert line_fields(line) == {
        "position": "0/1:1",
        "key": {"id": 7},
        "after": {"id": 7, "note": 'a, b: {c} "d"'},
        "xid": 12,
    }


@pytest.mark.parametrize("value", ['"\\ud83d"', "1e400", '["}", {"a": "\\ud83d\\\\"}, "]"]', "[" * 2000 + "]" * 2000])
def test_a_value_that_cannot_be_read_is_its_text_and_all_others_are_read(value: str) -> None:
    row = f'{{"\\"a\\":":1,"half":{value},"{{":{{"b":[1,{{}}]}},"c":"\\\\"}}'
    line = f'{{"before":null,"after":{row},"key":{{}},"table":"rows","size":{value}}}\n'.encode()
    assert line_fields(line) == {
        "before": None,
        "after": {'"a":': 1, "half": value, "{": {"b": [1, {}]}, "c": "\\"},
        "key": {},
        "table": "rows",
        "size": value,
    }


def test_a_document_in_a_row_is_one_value() -> None:
    document = '{"a":1,"half":"\\ud83d"}'
    assert line_fields(f'{{"after":{{"document":{document},"n":1}}}}'.encode()) == {"after": {"document": document, "n": 1}}

"""Each sink that writes JSON writes it in the shape it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

from pgsluice.testing.batch import apply, write_copied_partition, write_partition
from pgsluice.testing.changes_builder import copied, insert, message, table
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.stdout.sink import StdoutSink
from tests.worker.sinks.file import output
from tests.worker.sinks.line_settings import line_settings
from tests.worker.sinks.settings import worker_settings

ROWS = table("public.rows", "id bigint", "note text")
NOWHERE = worker_settings("orders")


def test_standard_output_takes_changes_and_copied_rows_in_pg_flos_shape() -> None:
    writer = StdoutSink(NOWHERE, StdoutSinkSettings(line_settings(shape="pg-flo"))).writer()
    receipts = write_partition(writer, [message(1, insert(ROWS, b"1", b"n"))])
    receipts += write_copied_partition(writer, [copied(1, ROWS, (b"2", b"n"))])
    lines = [json.loads(line) for receipt in receipts for line in receipt.body.splitlines()]
    assert [(line["Type"], line["NewTuple"]["id"]) for line in lines] == [("INSERT", 1), ("INSERT", 2)]


def test_a_file_never_holds_lines_of_two_shapes(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    for sequence, (shape, compression) in enumerate(
        (("json", "none"), ("pg-flo", "none"), ("pg-flo", "gzip"), ("json", "none")), 1
    ):
        sink = output.new_sink(directory, file_format=shape, compression=compression)
        sink.open()
        apply(sink, [[message(sequence, insert(ROWS, b"%d" % sequence, b"n"))]])
        if sequence == 2:  # killed: its file is in progress when the next one starts
            assert output.position_of(directory)["file"].endswith("2.pg-flo.jsonl.part")
            continue
        sink.close()
    names = [path.name.partition(output.PREFIX)[2] for path in output.finished_files(directory)]
    assert names == ["0000000001.jsonl", "0000000002.pg-flo.jsonl", "0000000003.pg-flo.jsonl.gz", "0000000004.jsonl"]
    ids = [line["NewTuple"]["id"] if "NewTuple" in line else line["after"]["id"] for line in output.lines(directory)]
    assert ids == [1, 2, 3, 4]

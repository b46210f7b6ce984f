"""The options of the stdout sink."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.shared.config.declaration import part, settings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.process.start import is_output_closed
from pgsluice.worker.sinks.lines.options import LineSettings, foreign_format_problems
from pgsluice.worker.sinks.sink_registry import SinkKind


@settings
class StdoutSinkSettings:
    """``lines`` determines the output."""

    lines: LineSettings = part(LineSettings)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        yield from foreign_format_problems(values)


def _check_output(settings: StdoutSinkSettings) -> None:
    if is_output_closed():
        raise UsageError("standard output is closed, and the stdout sink has nowhere else to write", "redirect it or pipe it on")


SINK = SinkKind(
    settings=StdoutSinkSettings,
    sink="pgsluice.worker.sinks.stdout.sink:StdoutSink",
    summary="Write one JSON line for each change to standard output.",
    help="Write one JSON line for each change to standard output, in commit order.",
    check=_check_output,
)

"""The exports of a process's vitals, as configured: no library is loaded without its setting.

Each runs on a separate thread. One that fails ends the process, for a supervisor to start it again: silence must not be
mistaken for health.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from pgsluice.shared.config.metrics_settings import MetricsSettings
from pgsluice.shared.errors import PgsluiceError, UsageError
from pgsluice.shared.metrics.vitals import Vitals
from pgsluice.shared.process.defect import ended_task


class Outputs:
    """The exports of one process, from creation to ``close``."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self.url = ""
        """URL of the endpoints; "" without."""

    @classmethod
    def begin(cls, settings: MetricsSettings, vitals: Vitals, on_ended: Callable[[PgsluiceError], None]) -> Outputs:
        """Begins the exports. ``on_ended`` is called, on another thread, with the reason if one has ended. Raises
        UsageError or TerminalError when one cannot begin."""
        outputs = cls()

        def told(error: BaseException) -> None:
            on_ended(ended_task("the listener of metrics and health", error))

        try:
            if settings.listen:
                from pgsluice.shared.metrics.listener import Listener

                listener = Listener(settings.listen, vitals, told)
                outputs._open.callback(listener.close)
                outputs.url = listener.url
            if settings.otlp_endpoint:
                outputs._open.callback(_push(settings, vitals, told))
        except PgsluiceError:
            outputs.close()
            raise
        return outputs

    def close(self) -> None:
        """May be called again."""
        self._open.close()


def _push(settings: MetricsSettings, vitals: Vitals, on_ended: Callable[[BaseException], None]) -> Callable[[], None]:
    """Begins the push; returns the function that ends it."""
    try:
        from pgsluice.shared.metrics.otlp_push import Push
    except ModuleNotFoundError as error:
        raise UsageError(
            f"otlp-endpoint is given, and module '{error.name}' is not installed",
            "pip install opentelemetry-exporter-otlp-proto-http",
        ) from None
    return Push(settings, vitals, on_ended).close

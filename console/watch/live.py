"""Shows a group until the user ends it: a live screen on a terminal, else the lines of ``pgsluice status`` each time.

A broker that becomes unreachable is no reason to end: the screen shows that, with the last status, and continues when
it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.live import Live

from pgsluice.console.status import format_status
from pgsluice.console.watch.keyboard import reading_keys
from pgsluice.console.watch.look import Look, Looks
from pgsluice.console.watch.screen import status_screen
from pgsluice.replicator.tasks import cancel
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import StatusSettings
from pgsluice.shared.errors import TransientError

QUIET = "CRITICAL"
"""Level of the log: its lines would be written across the screen, which shows the broker's state itself."""

_REDRAW_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(settings: StatusSettings, every_s: float) -> int:
    """Returns 0 at Ctrl-C, at a SIGTERM, or at the key q. Raises UsageError or TerminalError for what does not pass, and when
    standard output is no terminal TransientError for a NATS that does not answer at the beginning."""
    console = Console()
    if console.is_terminal:
        telemetry.set_up(replace(settings.log, level=QUIET))
        asyncio.run(_until_ended(lambda: show_screen(settings, every_s, console)))
    else:
        asyncio.run(_until_ended(lambda: _write_lines(settings, every_s)))
    return 0


async def show_screen(settings: StatusSettings, every_s: float, console: Console) -> None:
    """Shows the screen until it is cancelled; then the terminal is as it was. Draws again at each read, when the window
    has another size, and each second without a read."""
    looks, resized = Looks(settings), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    problem, looking = "", asyncio.ensure_future(looks.next())
    try:
        with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False, redirect_stdout=False) as live:
            while True:
                live.update(status_screen(looks.earlier, looks.newest, problem), refresh=True)
                await _any_of(looking, resized)
                if looking.done():
                    problem = _problem(looking)
                    looking = asyncio.ensure_future(_after(every_s, looks.next))
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        await cancel([looking])
        await looks.close()


async def _write_lines(settings: StatusSettings, every_s: float) -> None:
    looks, is_begun = Looks(settings), False
    try:
        while True:
            lines = [f"-- {datetime.now(UTC).isoformat(timespec='seconds')}"]
            try:
                lines += format_status((await looks.next()).status)
            except TransientError as error:
                if not is_begun:
                    raise
                lines.append(str(error))
            is_begun = True
            sys.stdout.writelines(f"{line}\n" for line in lines)
            sys.stdout.flush()
            await asyncio.sleep(every_s)
    finally:
        await looks.close()


async def _until_ended(show: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs until a signal or a key asks for the end; raises the error of ``show`` before that."""
    showing = asyncio.ensure_future(show())
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, showing.cancel)
    with reading_keys({"q": showing.cancel}), contextlib.suppress(asyncio.CancelledError):
        await showing


async def _any_of(looking: asyncio.Future[Look], resized: asyncio.Event) -> None:
    """Returns when there is something else to draw: a read, a window of another size, or the age of the last read."""
    waiting = asyncio.ensure_future(resized.wait())
    try:
        either: set[asyncio.Future[Any]] = {looking, waiting}
        await asyncio.wait(either, timeout=_REDRAW_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        resized.clear()


async def _after(pause_s: float, look: Callable[[], Coroutine[Any, Any, Look]]) -> Look:
    await asyncio.sleep(pause_s)
    return await look()


def _problem(looking: asyncio.Future[Look]) -> str:
    """Returns why the read failed; "" when it succeeded. Raises errors that are not transient."""
    try:
        looking.result()
    except TransientError as error:
        return str(error)
    return ""

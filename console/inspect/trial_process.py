"""A process that tries the rules of users who are not trusted with the server, within limits that the operating system enforces.

A pattern may take gigabytes when it is compiled, or take unlimited time for a value, and then no exception is raised.
So this process ends, and the server and other requests continue. It receives a trial in pickle and answers in JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import sys
from typing import NoReturn

import orjson

from pgsluice.console.inspect.rules_trial import BenchTrial, ChangesTrial
from pgsluice.shared import telemetry
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.process.defect import place_of

MOST_MEMORY_BYTES = 768 * 1024 * 1024
"""Limit on the address space of the process; the program itself takes a third of it."""
MOST_PROCESSOR_S = 15
LONGEST_S = 60.0
"""Limit on wall-clock time: other trials and other processes may occupy the processors."""
MOST_ANSWER_BYTES = 32 * 1024 * 1024

_COMMAND = (sys.executable, "-P", "-m", "pgsluice.console.inspect.trial_process")
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""Variables that the process gets; the other ones can contain secrets."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Settings for a single thread: with a thread for each processor, each would take addresses."""
_DONE, _DEFECT, _USAGE, _NO_MEMORY, _TERMINAL = 0, 1, 2, 3, 70
"""Exit codes of the process. With any other one, the operating system ended it."""
_NICENESS = 10

log = telemetry.logger(__name__)


async def run_trial(trial: BenchTrial | ChangesTrial) -> bytes:
    """Returns the result of the trial in JSON. Raises UsageError, also when the trial takes too much, and TerminalError."""
    variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | _ONE_THREAD
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, env=variables, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        async with asyncio.timeout(LONGEST_S):
            answer = await _answer(process, await asyncio.to_thread(pickle.dumps, trial))
            code = await process.wait()
    except TimeoutError:
        raise _too_much(f"more than {LONGEST_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _checked(answer, code)


async def _answer(process: asyncio.subprocess.Process, given: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    answer = bytearray()
    with contextlib.suppress(ConnectionError):  # its exit code is more specific
        process.stdin.write(given)
        process.stdin.write_eof()
    while piece := await process.stdout.read(1 << 16):
        answer += piece
        if len(answer) > MOST_ANSWER_BYTES:
            raise _too_much(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")
    return bytes(answer)


def _checked(answer: bytes, code: int) -> bytes:
    if code == _DONE:
        return answer
    if code == _USAGE:
        raise UsageError(*orjson.loads(answer))
    if code == _TERMINAL:
        raise TerminalError(*orjson.loads(answer))
    if code == _DEFECT:
        log.error("an unexpected error ended a trial of rules", place=answer.decode())
        raise RuntimeError("a trial of rules was ended by an unexpected error")
    raise _too_much(f"more than {MOST_PROCESSOR_S} s of the processor or {MOST_MEMORY_BYTES >> 20} MiB of memory")


def _too_much(what: str) -> UsageError:
    return UsageError(
        f"the trial of the rules takes {what}", "try them on fewer changes, or simplify the pattern that takes so much"
    )


def _main() -> NoReturn:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_S, MOST_PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    trial: BenchTrial | ChangesTrial = pickle.load(sys.stdin.buffer)  # noqa: S301  of the server that started us
    try:
        code, answer = _DONE, orjson.dumps(trial.result())
    except UsageError as error:
        code, answer = _USAGE, _told(error)
    except PgsluiceError as error:
        code, answer = _TERMINAL, _told(error)
    except MemoryError:
        code, answer = _NO_MEMORY, b""
    except Exception as error:  # noqa: BLE001  the server tells it
        code, answer = _DEFECT, place_of(error).encode()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(code)


def _told(error: PgsluiceError) -> bytes:
    return orjson.dumps([error.fact, error.remedy])


if __name__ == "__main__":
    _main()

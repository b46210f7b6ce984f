"""A socket that listens on a configured address, or an error that explains why it cannot."""

from __future__ import annotations

import errno
import os
import socket

from pgsluice.shared.errors import TerminalError, UsageError

BACKLOG = 128


def listen(host: str, port: int, option: str) -> socket.socket:
    """Returns a socket, bound and listening; with port 0 the system chooses one. ``option`` is the setting with the
    address. Raises UsageError for an unknown host, TerminalError for an address that is in use or not of this machine."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"{option}: there is no host {host!r}", "write it like 127.0.0.1:8470") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(error, host, port, option) from None
    return listener


def _refused(error: OSError, host: str, port: int, option: str) -> TerminalError:
    match error.errno:
        case errno.EADDRINUSE:
            remedy = "stop the program that listens there, or choose another port (0: any that is free)"
        case errno.EACCES:
            remedy = "choose a port from 1024 on, or give the program the right to use lower ones"
        case errno.EADDRNOTAVAIL:
            remedy = "give an address of this machine"
        case _:
            remedy = "choose another address"
    return TerminalError(f"{option}: cannot listen at {host} port {port}: {os.strerror(error.errno or 0)}", remedy)

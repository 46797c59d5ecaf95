"""Forks a child for each compile request, and ends everything that the child has started. The code of the
child is in `worker_main.py`. Only the standard library is needed here.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from torchair.core.processes.supervisor import GLANCE_SECONDS, adopt_orphans, below, end_below


class Server:
    """Forks a child for each compile request. Processes that a child has started end with it."""

    def __init__(self, orders: socket.socket, parent: int, idle_seconds: float) -> None:
        self._orders, self._parent, self._pid = orders, parent, os.getpid()
        self._idle_seconds = idle_seconds
        self._children: dict[int, socket.socket] = {}
        """Maps each child to the socket to its client, which receives the exit status."""
        self._residents = {process.pid for process in below(self._pid)}
        """Processes that existed before the first request."""
        self._idle_since = time.monotonic()

    def serve(self) -> Path | None:
        """Return the path of the request in a child; None in the server when there is no more work."""
        while True:
            ready = self._ready()
            if self._orders.fileno() in ready:
                message, files, *_ = socket.recv_fds(self._orders, 4096, 2)
                if not message:
                    return None
                log, client = files[0], socket.socket(fileno=files[1])
                if self._begin(log, client):
                    return Path(os.fsdecode(message))
            elif os.getppid() != self._parent or self._is_idle():
                return None
            for child, client in list(self._children.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended or client.fileno() in ready:  # the client has disconnected
                    self._end(child, os.waitstatus_to_exitcode(status) if ended else -signal.SIGKILL)

    def _ready(self) -> set[int]:
        """Return the file descriptors that can be read. `poll` has no limit on their number."""
        poll = select.poll()
        for each in (self._orders, *self._children.values()):
            poll.register(each, select.POLLIN)
        return {file for file, _ in poll.poll(1000 * GLANCE_SECONDS)}

    def _is_idle(self) -> bool:
        return not self._children and time.monotonic() > self._idle_since + self._idle_seconds

    def _begin(self, log: int, client: socket.socket) -> bool:
        """Fork a child for a request. Return True in the child."""
        child = _fork(log)
        if child == 0:
            os.setpgid(0, 0)
            os.dup2(log, sys.stderr.fileno())
            os.close(log)
            # The other side sees the end of a connection only when no copy is open.
            for each in (self._orders, client, *self._children.values()):
                each.close()
            adopt_orphans()
            _ensure_working_dir()
            _end_with_server(self._pid)
            return True
        os.close(log)
        if child > 0:
            self._children[child] = client
            _send(client, child)
        else:
            _send(client, self._pid)
            _send(client, 1)
            client.close()
        return False

    def _end(self, child: int, status: int) -> None:
        """End a child and everything that it has started, and send its exit status."""
        client = self._children.pop(child)
        end_below(self._pid, {*self._children, *self._residents})
        _send(client, status)
        client.close()
        self._idle_since = time.monotonic()


def _fork(log: int) -> int:
    """Return the PID of the child, 0 in the child, or a negative number if no process can start (see the
    log).
    """
    try:
        return os.fork()
    except OSError as error:
        os.write(log, f"cannot start a process: {error}\n".encode())
        return -1


def _send(client: socket.socket, number: int) -> None:
    """Send a number, unless the client has disconnected."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(f"{number}\n".encode())


def _ensure_working_dir() -> None:
    """Change to the folder for temporary files if the working directory was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(tempfile.gettempdir())


def _end_with_server(server: int) -> None:
    """In a child of the server: end if the server was killed and cannot end its children."""
    own = os.getpid()

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(0.5)
        end_below(own)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()

"""A small server before the S3 server: it passes bytes on, until it is told to fail as real servers do."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy(socketserver.ThreadingTCPServer):
    """Passes connections on to another port of the loopback.

    Attributes:
        how: ``well``, ``silent`` (no answer), ``half`` (an answer's first half) or ``busy`` (503), from the first
            request on whose line holds all of ``at``, so many ``times``. asked: the lines of the requests it failed.
    """

    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.behind = port
        self.how, self.at, self.times = "well", "", 0
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def fail(self, how: str, at: str = "", times: int = 1 << 30) -> None:
        """Fail so from now on."""
        self.how, self.at, self.times, self.asked = how, at, times, []

    def fails(self, request: bytes) -> bool:
        """Whether it fails this request; once it has failed one, it fails those that follow."""
        line = request.partition(b"\r\n")[0].decode("latin-1")
        due = bool(self.asked) or all(word in line for word in self.at.split())
        failing = self.how != "well" and due and len(self.asked) < self.times
        if failing:
            self.asked.append(line)
        return failing


class Connection(socketserver.BaseRequestHandler):
    """One client's connection, and one to the server behind."""

    server: Proxy

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.behind)) as behind:
            threading.Thread(target=self._answers, args=(behind,), daemon=True).start()
            self.halved = False
            while sent := self.request.recv(1 << 16):
                begins = sent.split(b" ", 1)[0] in (b"GET", b"HEAD", b"PUT", b"POST", b"DELETE")
                if begins and self.server.fails(sent):
                    if self.server.how == "busy":
                        self.request.sendall(BUSY)
                        return
                    if self.server.how == "silent":
                        while self.request.recv(1 << 16):
                            pass
                        return
                    self.halved = True
                behind.sendall(sent)

    def _answers(self, behind: socket.socket) -> None:
        with suppress(OSError):
            while answer := behind.recv(1 << 16):
                if self.halved:
                    self.request.sendall(answer[: len(answer) // 2])
                    return
                self.request.sendall(answer)
            self.request.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(port: int) -> Iterator[Any]:
    """A running proxy of the server at a port."""
    with Proxy(port) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()

"""Something between a client and the server that fails as networks do.

It stands on a socket of its own and passes everything on, until a COMMIT comes from the client and
a failure is due. Each failure happens once; what is not due is passed on.
"""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

Failure = Literal[
    "before the commit",  # it never reaches the server
    "after the commit",  # the server has answered, the client never hears of it
    "no answer",  # it never reaches the server, and the connection stays open
    "late",  # it reaches the server after the client has given up and queried its status
]
_COMMIT = b"COMMIT\0"
_REFUSED, _READY = b"SERROR\0", b"Z\0\0\0\5"
_PORT = 54_329
_LATE = 0.3


class Proxy:
    """Passes bytes between clients and the server, and fails when told to."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self.failures: deque[Failure | None] = deque()
        self.happened: list[Failure] = []
        self.last = False  # after a failure no connection gets through any more
        self.meanwhile: Callable[[], object] | None = None  # behind a failure, before it is noticed
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / f".s.PGSQL.{_PORT}"))
        self._listener.listen(64)
        self._stopping = self._stopped = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def port(self) -> int:
        return _PORT

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._stopping:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._server))
            except OSError:
                client.close()
                server.close()
                continue
            self._start(self._pass, client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as waiting:
            waiting.register(client, selectors.EVENT_READ, server)
            waiting.register(server, selectors.EVENT_READ, client)
            try:
                while not self._stopping:
                    for key, _ in waiting.select(0.1):
                        if not self._pass_some(key.fileobj, key.data, client, server):  # type: ignore[arg-type]
                            return
            except OSError:
                return

    def _pass_some(
        self,
        source: socket.socket,
        to: socket.socket,
        client: socket.socket,
        server: socket.socket,
    ) -> bool:
        data = source.recv(1 << 20)
        if not data:
            return False
        if source is client and _COMMIT in data and self.failures:
            failure = self.failures.popleft()
            if failure is not None:
                self.happened.append(failure)
                passed = self._fail(failure, data, client, server)
                if self.meanwhile is not None:
                    self.meanwhile()
                if self.last:
                    self._stopping = True
                return passed
        to.sendall(data)
        return True

    def _fail(
        self, failure: Failure, data: bytes, client: socket.socket, server: socket.socket
    ) -> bool:
        if failure == "after the commit":
            server.sendall(data)
            self._hear_the_answer(client, server)
        elif failure == "no answer":
            while not self._stopping:
                time.sleep(0.02)
        elif failure == "late":
            while client.recv(1 << 16):
                """It has not given up."""
            time.sleep(_LATE)
            server.sendall(data)
            self._await_the_end(server)
        return False

    def _await_the_end(self, server: socket.socket) -> None:
        """Wait until the server has done what it was sent, or has hung up before."""
        answer = b""
        with suppress(OSError), selectors.DefaultSelector() as waiting:
            waiting.register(server, selectors.EVENT_READ)
            while not self._stopping and not _is_over(answer):
                for _ in waiting.select(0.1):
                    more = server.recv(1 << 16)
                    if not more:
                        return
                    answer += more

    def _hear_the_answer(self, client: socket.socket, server: socket.socket) -> None:
        """Wait for the server's answer to COMMIT, or to what came before and failed.

        The server may need what the client sends behind it.
        """
        answer = b""
        with selectors.DefaultSelector() as waiting:
            waiting.register(client, selectors.EVENT_READ)
            waiting.register(server, selectors.EVENT_READ)
            while not _is_over(answer) and not self._stopping:
                for key, _ in waiting.select(0.1):
                    if key.fileobj is server:
                        more = server.recv(1 << 16)
                        if not more:
                            return
                        answer += more
                    elif more := client.recv(1 << 16):
                        server.sendall(more)
                    else:
                        waiting.unregister(client)  # It has given up, and the server goes on.

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopping = self._stopped = True
        # Closing a socket does not wake a thread that waits for it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


def _is_over(answer: bytes) -> bool:
    """Whether the server has committed, or refused something and is ready again."""
    _, refused, behind = answer.partition(_REFUSED)
    return _COMMIT in answer or (refused != b"" and _READY in behind)

"""HTTP/1.1 on kept connections: no more than the claims API needs, and little work per call.

`http.client` spends most of a call in its header parser. Here a request is one write and an answer is one read.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from typing import NamedTuple
from urllib.parse import urlsplit

_MAX_HEAD = 64 << 10


class Answer(NamedTuple):
    """An answer of the server."""

    status: int
    body: bytes
    retry_after: float | None


class Endpoint:
    """The address of a server, and the parts of a request that never change."""

    def __init__(self, url: str, token: str | None, ca_file: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected a URL such as http://127.0.0.1:8081, found {url!r}")
        if token is not None and not token.isprintable():
            raise ValueError("the token holds characters that no header can hold")
        self.tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        lines = [f"Host: {parts.netloc.rpartition('@')[2]}", "Content-Type: application/json"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        self._fixed = "".join(f"{line}\r\n" for line in lines)

    def request(self, method: str, path: str, body: bytes) -> bytes:
        """The bytes of a request."""
        head = f"{method} {path} HTTP/1.1\r\n{self._fixed}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body


class Parser:
    """Reads one answer from pieces as they come."""

    __slots__ = ("_buffer", "_head_end", "_length", "_retry_after", "_status", "keep")

    def __init__(self) -> None:
        self._buffer = b""
        self._head_end = -1
        self._length: int | None = 0
        self._status = 0
        self._retry_after: float | None = None
        self.keep = True
        """False: the server closes this connection."""

    def feed(self, piece: bytes) -> Answer | None:
        """The answer, once it is whole. An empty piece is the end of the stream."""
        if not piece:
            raise ConnectionError("the server closed the connection before it had answered")
        self._buffer = buffer = self._buffer + piece if self._buffer else piece
        if self._head_end < 0:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > _MAX_HEAD:
                    raise ConnectionError("the head of the answer is too large")
                return None
            self._read_head(buffer[:end])
            self._head_end = end + 4
            if 100 <= self._status < 200:
                rest = buffer[self._head_end :]
                self._buffer, self._head_end = b"", -1
                return self.feed(rest) if rest else None
        start = self._head_end
        if self._length is None:
            body = _chunked(buffer, start)
            return None if body is None else Answer(self._status, body, self._retry_after)
        end = start + self._length
        if len(buffer) < end:
            return None
        return Answer(self._status, buffer[start:end], self._retry_after)

    def _read_head(self, head: bytes) -> None:
        lines = head.lower().split(b"\r\n")
        if not lines[0].startswith(b"http/1.") or len(lines[0]) < 12:
            raise ConnectionError("the answer is not HTTP/1.1")
        self._status = int(lines[0][9:12])
        self.keep = not lines[0].startswith(b"http/1.0")
        for line in lines:
            if line.startswith(b"content-length:"):
                self._length = int(line[15:])
            elif line.startswith(b"transfer-encoding:"):
                self._length = None
            elif line.startswith(b"connection:") and b"close" in line:
                self.keep = False
            elif line.startswith(b"retry-after:") and line[12:].strip().isdigit():
                self._retry_after = float(line[12:])


def _chunked(buffer: bytes, at: int) -> bytes | None:
    body = b""
    while True:
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(buffer[at:end].split(b";")[0], 16)
        at = end + 2
        if size == 0:
            # Trailers are not used; the answer ends with an empty line.
            return body if buffer.find(b"\r\n", at) >= 0 else None
        if len(buffer) < at + size + 2:
            return None
        body += buffer[at : at + size]
        at += size + 2


class Connection:
    """One kept connection of blocking callers."""

    __slots__ = ("_poll", "_seconds", "_socket")

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        plain = socket.create_connection((endpoint.host, endpoint.port), seconds)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = (
                endpoint.tls.wrap_socket(plain, server_hostname=endpoint.host) if endpoint.tls else plain
            )
        except BaseException:
            plain.close()
            raise
        self._seconds = seconds
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self._socket, select.POLLIN)

    def call(self, request: bytes, seconds: float) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again."""
        if seconds != self._seconds:
            self._socket.settimeout(seconds)
            self._seconds = seconds
        self._socket.sendall(request)
        parser = Parser()
        while True:
            try:
                answer = parser.feed(self._socket.recv(1 << 16))
            except ValueError as error:
                raise ConnectionError(f"the answer is not HTTP/1.1: {error}") from None
            if answer is not None:
                return answer, parser.keep

    def is_alive(self) -> bool:
        """False if the server has closed the connection. On an idle one nothing else arrives."""
        if self._poll is not None:
            return not self._poll.poll(0)
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


class Pool:
    """The idle connections of blocking callers. The last one used is the first one taken."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[Connection] = deque()

    def call(self, request: bytes, seconds: float) -> Answer:
        """Sends a request once. Raises `OSError` if its fate is unknown."""
        connection = self._take() or Connection(self._endpoint, seconds)
        try:
            answer, keep = connection.call(request, seconds)
        except BaseException as error:
            # The answer may still come: nobody else may read it as theirs.
            connection.close()
            if isinstance(error, OSError):
                # The other idle ones may have ended with the same server, and may not know it yet: the retry opens its own.
                self.close()
            raise
        if keep:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self) -> Connection | None:
        """An idle connection that the server has not closed."""
        while True:
            try:
                # Atomic: many threads share it without a lock.
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_alive():
                return connection
            connection.close()

    def close(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

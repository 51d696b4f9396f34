"""The same kept connections for asyncio, on its transports."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator

from ._wire import Answer, Endpoint, Parser


class AsyncConnection(asyncio.Protocol):
    """One kept connection of one event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = Parser()
        self._answer: asyncio.Future[Answer] | None = None
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        waiting = self._answer
        try:
            answer = self._parser.feed(data)
        except (OSError, ValueError) as error:
            self._fail(ConnectionError(str(error)))
            return
        if answer is None:
            return
        self.usable = self.usable and self._parser.keep
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        else:
            # Nobody asked.
            self.close()

    def eof_received(self) -> None:
        self._fail(ConnectionError("the server closed the connection before it had answered"))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()

    async def call(self, request: bytes, seconds: float) -> Answer:
        assert self._transport is not None
        self._parser = Parser()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        timer = asyncio.get_running_loop().call_later(
            seconds, self._fail, TimeoutError("the server did not answer in time")
        )
        try:
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()


class _LoopConnections:
    """The idle connections of one event loop. They are closed before it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weak: the loop is the key of these connections, and must not be kept by them.
        self._loop = weakref.ref(loop)
        self.idle: deque[AsyncConnection] = deque()
        self._end: AsyncGenerator[None, None] | None = self._close_with_loop()

    async def watch_end(self) -> None:
        if self._end is not None:
            await self._end.__anext__()

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        # The loop closes its asynchronous generators when it ends.
        try:
            yield
        finally:
            self.close_all()
            # It knows its loop, which nothing here may keep.
            self._end = None

    def take(self) -> AsyncConnection | None:
        while self.idle:
            connection = self.idle.pop()
            if connection.usable:
                return connection
        return None

    def close_all(self) -> None:
        while self.idle:
            self.idle.pop().close()

    def close(self) -> None:
        """Closes them from any thread: transports belong to the thread of their loop."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.close_all)


class AsyncPool:
    """The idle connections of all event loops."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def call(self, request: bytes, seconds: float) -> Answer:
        """Sends a request once. Raises `OSError` if its fate is unknown."""
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop) or await self._add(loop)
        connection = connections.take() or await self._connect(loop, seconds)
        try:
            answer = await connection.call(request, seconds)
        except BaseException as error:
            # The answer may still come: nobody else may read it as theirs.
            connection.close()
            if isinstance(error, OSError):
                # The other idle ones may have ended with the same server, and may not know it yet: the retry opens its own.
                connections.close_all()
            raise
        if connection.usable:
            connections.idle.append(connection)
        return answer

    async def _add(self, loop: asyncio.AbstractEventLoop) -> _LoopConnections:
        connections = _LoopConnections(loop)
        with self._lock:
            for other in list(self._loops):
                if other.is_closed():
                    del self._loops[other]
            self._loops[loop] = connections
        await connections.watch_end()
        return connections

    async def _connect(self, loop: asyncio.AbstractEventLoop, seconds: float) -> AsyncConnection:
        endpoint = self._endpoint
        connecting = loop.create_connection(AsyncConnection, endpoint.host, endpoint.port, ssl=endpoint.tls)
        try:
            return (await asyncio.wait_for(connecting, seconds))[1]
        except asyncio.TimeoutError:
            raise TimeoutError("the server could not be reached in time") from None

    def close(self) -> None:
        with self._lock:
            all_connections = list(self._loops.values())
        for connections in all_connections:
            connections.close()

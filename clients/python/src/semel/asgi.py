"""Middleware for FastAPI, Starlette and every other ASGI application. It behaves like the gateway's `ietf` profile.

    app.add_middleware(IdempotencyMiddleware)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from . import _gateway
from ._client import Client, default_client
from ._gateway import Guarded, Header, Refused, Response, Steering, take_steering
from ._steps import Lost, Outcome, Won
from ._terms import Terms
from .errors import ConflictError, ExpiredError, NotKeptError, SemelError

Message = MutableMapping[str, Any]
ConnectionScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[ConnectionScope, Receive, Send], Awaitable[None]]

_running: set[asyncio.Task[Any]] = set()


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once, and answers its retries from the record.

    `principal` finds the caller in the connection scope; by default it is the credential of `Authorization`. Return `""`
    if all callers are one.
    """

    def __init__(
        self,
        app: App,
        *,
        client: Client | None = None,
        namespace: str = "http-app",
        required: bool = False,
        principal: Callable[[ConnectionScope], str] | None = None,
        max_body: int = _gateway.MAX_BODY,
    ) -> None:
        self.app = app
        self._client = client
        self._namespace = namespace
        self._required = required
        self._principal = principal
        self._max_body = max_body
        self._terms: Terms | None = None

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: list[Header] = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
        method = scope["method"]
        if method == "GET" and scope["path"] == _gateway.WELL_KNOWN:
            await _answer(send, _gateway.policy(self._required))
            return
        if not _gateway.is_guarded(method, headers, self._required):
            await self.app(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            return
        try:
            if len(body) > self._max_body:
                raise Refused("body_too_large")
            path = _raw_path(scope)
            principal = self._principal(scope) if self._principal else None
            asked = _gateway.guard(method, path, scope.get("query_string", b""), headers, body, principal)
        except Refused as refused:
            await _answer(send, _gateway.problem(refused.code))
            return
        client = self._client or default_client()
        if self._terms is None:
            self._terms = client.terms(self._namespace, wait=_gateway.WAIT, retention=_gateway.RETENTION)
        try:
            found = await client.aclaim(
                self._terms, asked.key, scope=[asked.scope] if asked.scope else None, fingerprint=asked.fingerprint
            )
            if isinstance(found, Outcome):
                await _answer(send, _gateway.from_stored(found.value))
                return
        except SemelError as error:
            await _answer(send, _gateway.refusal(error))
            return
        # In a task of its own: a client that hangs up does not stop a request that has begun.
        task = asyncio.ensure_future(self._run(client, self._terms, asked, found, scope, body, send))
        _running.add(task)
        task.add_done_callback(_running.discard)
        await asyncio.shield(task)

    async def _read(self, receive: Receive) -> bytes | None:
        pieces = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            size += len(piece)
            # Of a body that is too large, only the size is needed.
            if size <= self._max_body + 1:
                pieces.append(piece)
            if not message.get("more_body"):
                return b"".join(pieces) if size <= self._max_body else b"\0" * (self._max_body + 1)

    async def _run(
        self,
        client: Client,
        terms: Terms,
        asked: Guarded,
        won: Won,
        scope: ConnectionScope,
        body: bytes,
        send: Send,
    ) -> None:
        given = False

        async def receive() -> Message:
            nonlocal given
            if given:
                # The application is not told that its client hung up: it has begun.
                await asyncio.Event().wait()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        collected = _Collected(send, self._max_body)
        try:
            await self.app(_without_extensions(scope), receive, collected.send)
        except BaseException as error:
            await client.aend(won, _gateway.after_failure(error, collected.head_sent))
            raise
        response, steering = collected.response()
        verdict = _gateway.verdict(response.status, steering)
        if collected.streams and not collected.ended:
            # The application returned in the middle of its answer.
            verdict = "abandon"
        try:
            if verdict == "keep":
                text = None if collected.streams else _gateway.to_stored(response)
                other = await self._complete(client, terms, asked, won, text, steering.retention)
                if other is not None and not collected.streams:
                    response = _gateway.from_stored(other.value)
            else:
                await client.aend(won, verdict)
                response.headers.append((b"idempotency-stored", b"false"))
        except (NotKeptError, ConflictError, ExpiredError) as error:
            # Another request's outcome stands, and its answer cannot be given.
            response = _gateway.refusal(error)
        except (SemelError, Lost):
            response.headers.append((b"idempotency-stored", b"false"))
        if not collected.streams:
            await _answer(send, response)

    async def _complete(
        self, client: Client, terms: Terms, asked: Guarded, won: Won, text: str | None, retention: float | None
    ) -> Outcome | None:
        """Stores the answer. Returns the outcome that stands if it is another one's."""
        try:
            return await client.acomplete(won, text, retention=retention, not_kept=_gateway.STREAMED)
        except Lost:
            scope = [asked.scope] if asked.scope else None
            found = await client.aclaim(terms, asked.key, scope=scope, fingerprint=asked.fingerprint)
            if isinstance(found, Outcome):
                return found
            return await client.acomplete(found, text, retention=retention, not_kept=_gateway.STREAMED)


def _without_extensions(scope: ConnectionScope) -> ConnectionScope:
    """Offers no other way to answer than a body: of a file that the server sends itself, nothing could be stored."""
    extensions = scope.get("extensions")
    if not extensions:
        return scope
    return {**scope, "extensions": {name: one for name, one in extensions.items() if not name.startswith("http.response.")}}


def _raw_path(scope: ConnectionScope) -> bytes:
    """The path as the client sent it: mounted applications see only their part of `path`."""
    raw: bytes | None = scope.get("raw_path")
    if raw:
        return raw.partition(b"?")[0]
    # Servers differ in whether `path` includes `root_path`, so both count.
    root: str = scope.get("root_path", "")
    path = quote(scope["path"], safe=_gateway.PATH_SAFE)
    return (f"{quote(root, safe=_gateway.PATH_SAFE)} {path}" if root else path).encode()


class _Collected:
    """Collects an answer, which its client gets once it is stored. A stream of events, or a body over the limit, is passed on as
    it comes."""

    def __init__(self, send: Send, limit: int) -> None:
        self._send = send
        self._limit = limit
        self._start: Message | None = None
        self._headers: list[Header] = []
        self._steering = Steering(False, None)
        self._pieces: list[bytes] = []
        self._size = 0
        self.streams = False
        self.ended = False

    @property
    def head_sent(self) -> bool:
        """True once the application has sent the head of its answer."""
        return self._start is not None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            self._headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            self._steering = take_steering(self._headers)
            for name, value in self._headers:
                if name == b"content-type" and value.lower().startswith(b"text/event-stream"):
                    await self._pass_on()
            return
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.ended = True
        if self.streams:
            await self._send_on(message)
        elif message["type"] == "http.response.body":
            piece = message.get("body", b"")
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > self._limit and message.get("more_body"):
                await self._pass_on()

    async def _pass_on(self) -> None:
        assert self._start is not None
        self.streams = True
        await self._send_on({**self._start, "headers": self._headers})
        if self._pieces:
            await self._send_on({"type": "http.response.body", "body": b"".join(self._pieces), "more_body": True})
            self._pieces.clear()

    async def _send_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            # The client hung up. The application has begun, and goes on.
            pass

    def response(self) -> tuple[Response, Steering]:
        if self._start is None:
            return Response(500, [], b""), self._steering
        return Response(self._start["status"], self._headers, b"".join(self._pieces)), self._steering


async def _answer(send: Send, response: Response) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body})

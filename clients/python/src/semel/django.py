"""Middleware for Django. It behaves like the gateway's `ietf` profile.

    MIDDLEWARE = ["semel.django.IdempotencyMiddleware", …]

Put it first: what other middlewares add to an answer is then stored with it. Settings: `SEMEL_ADMIN`, `SEMEL_TOKEN`,
`SEMEL_NAMESPACE`, `SEMEL_KEY_REQUIRED`, `SEMEL_PRINCIPAL` (a function of the request).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from . import _gateway
from ._client import Client
from ._gateway import Guarded, Header, Refused, Response
from ._steps import Lost, Outcome, Won
from .errors import ConflictError, ExpiredError, NotKeptError, SemelError


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once, and answers its retries from the record."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._client = Client(getattr(settings, "SEMEL_ADMIN", None), token=getattr(settings, "SEMEL_TOKEN", None))
        self._terms = self._client.terms(
            getattr(settings, "SEMEL_NAMESPACE", "http-app"), wait=_gateway.WAIT, retention=_gateway.RETENTION
        )
        self._required: bool = getattr(settings, "SEMEL_KEY_REQUIRED", False)
        self._principal: Callable[[HttpRequest], str] | None = getattr(settings, "SEMEL_PRINCIPAL", None)

    def __call__(self, request: HttpRequest) -> Any:
        method: str = request.method or "GET"
        if method == "GET" and request.path == _gateway.WELL_KNOWN:
            return _to_django(_gateway.policy(self._required))
        headers: list[Header] = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()
        ]
        if not _gateway.is_guarded(method, headers, self._required):
            return self.get_response(request)
        try:
            body: bytes = request.body
            if len(body) > _gateway.MAX_BODY:
                raise Refused("body_too_large")
            principal = self._principal(request) if self._principal else None
            query = str(request.META.get("QUERY_STRING", "")).encode("latin-1")
            asked = _gateway.guard(method, _raw_path(request), query, headers, body, principal)
        except Refused as refused:
            return _to_django(_gateway.problem(refused.code))
        try:
            found = self._client.claim(
                self._terms, asked.key, scope=[asked.scope] if asked.scope else None, fingerprint=asked.fingerprint
            )
            if isinstance(found, Outcome):
                return _to_django(_gateway.from_stored(found.value))
        except SemelError as error:
            return _to_django(_gateway.refusal(error))
        try:
            answer = self.get_response(request)
        except BaseException as error:
            # Django itself turns the errors of views into answers; what comes here is mostly the end of the process.
            self._client.end(found, _gateway.after_failure(error, head_sent=False))
            raise
        return self._settle(asked, found, answer)

    def _settle(self, asked: Guarded, won: Won, answer: Any) -> Any:
        """Stores, releases or abandons by the answer. Returns the answer that the client gets."""
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.items()]
        steering = _gateway.take_steering(headers)
        for name in ("Idempotency-Store", "Idempotency-Retention"):
            if name in answer:
                del answer[name]
        verdict = _gateway.verdict(answer.status_code, steering)
        try:
            if verdict != "keep":
                self._client.end(won, verdict)
                answer["Idempotency-Stored"] = "false"
            elif answer.streaming:
                watch = self._watch_async if getattr(answer, "is_async", False) else self._watch
                answer.streaming_content = watch(asked, won, answer.streaming_content, steering.retention)
            else:
                text = _gateway.to_stored(Response(answer.status_code, headers, answer.content))
                other = self._complete(asked, won, text, steering.retention)
                if other is not None:
                    return _to_django(_gateway.from_stored(other.value))
        except (NotKeptError, ConflictError, ExpiredError) as error:
            # Another request's outcome stands, and its answer cannot be given.
            return _to_django(_gateway.refusal(error))
        except (SemelError, Lost):
            answer["Idempotency-Stored"] = "false"
        return answer

    def _watch(self, asked: Guarded, won: Won, pieces: Any, retention: float | None) -> Iterator[bytes]:
        """Passes a stream on. Only its end says that the effect happened."""
        try:
            yield from pieces
        except BaseException:
            self._client.end(won, "abandon")
            raise
        try:
            self._complete(asked, won, None, retention)
        except (SemelError, Lost):
            # The lease decides. The client has its answer.
            pass

    async def _watch_async(
        self, asked: Guarded, won: Won, pieces: Any, retention: float | None
    ) -> AsyncIterator[bytes]:
        """As `_watch`, for a stream on an event loop."""
        try:
            async for piece in pieces:
                yield piece
        except BaseException:
            await self._client.aend(won, "abandon")
            raise
        try:
            await asyncio.to_thread(self._complete, asked, won, None, retention)
        except (SemelError, Lost):
            pass

    def _complete(self, asked: Guarded, won: Won, text: str | None, retention: float | None) -> Outcome | None:
        """Stores the answer. Returns the outcome that stands if it is another one's."""
        try:
            return self._client.complete(won, text, retention=retention, not_kept=_gateway.STREAMED)
        except Lost:
            scope = [asked.scope] if asked.scope else None
            found = self._client.claim(self._terms, asked.key, scope=scope, fingerprint=asked.fingerprint)
            if isinstance(found, Outcome):
                return found
            return self._client.complete(found, text, retention=retention, not_kept=_gateway.STREAMED)


def _raw_path(request: HttpRequest) -> bytes:
    """The path as the client sent it, where the server tells it."""
    raw = getattr(request, "scope", {}).get("raw_path") or b""
    target = str(request.META.get("RAW_URI") or request.META.get("REQUEST_URI") or "")
    if raw or target.startswith("/"):
        return (raw or target.encode("latin-1", "replace")).partition(b"?")[0]
    return quote(request.path, safe=_gateway.PATH_SAFE).encode()


def _to_django(response: Response) -> HttpResponse:
    answer = HttpResponse(response.body, status=response.status)
    del answer["Content-Type"]
    for name, value in response.headers:
        answer[name.decode("latin-1").title()] = value.decode("latin-1")
    return answer

"""The client: claims, events and runs of one Semel server, for blocking callers and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Union, cast

from . import _steps
from ._codec import encode_json
from ._heartbeat import Heartbeat
from ._steps import Attempt, Call, Outcome, Pause, Steps, Won
from ._terms import Duration, Mode, Terms, seconds
from ._wire import Answer, Endpoint, Pool
from ._wire_async import AsyncPool
from .errors import SemelError

T = TypeVar("T")
Scope = Union[str, Sequence[str], None]

LAST_TRY = 1.0
"""Seconds for which a completion is repeated while the process ends."""

log = logging.getLogger("semel")
# Not raised: the caller needs the error of the function.
_NOT_ENDED = (_steps.Lost, SemelError)

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """A Semel server. One client serves all threads and event loops of a process.

    `url` and `token` default to the environment's `SEMEL_ADMIN` and `SEMEL_TOKEN`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca_file: str | None = None,
        retry_for: Duration = 10.0,
    ) -> None:
        """`retry_for`: how long a request is repeated while the server or its store is unavailable."""
        url = url or os.environ.get("SEMEL_ADMIN") or "http://127.0.0.1:8081"
        token = token or os.environ.get("SEMEL_TOKEN")
        self._endpoint = Endpoint(url, token, ca_file or os.environ.get("SEMEL_ADMIN_CA"))
        self._retry_for = retry_for
        self._open()
        _clients.add(self)

    def _open(self) -> None:
        self._pool = Pool(self._endpoint)
        self._async_pool = AsyncPool(self._endpoint)
        self.heartbeat = Heartbeat(self._send, self.drive)

    def close(self) -> None:
        """Closes the idle connections, and ends the background threads once no claim is held. The client can be used again."""
        self.heartbeat.close()
        self._pool.close()
        self._async_pool.close()

    # How steps are run.

    def _send(self, call: Call) -> Answer:
        return self._pool.call(self._endpoint.request("POST", call.path, call.body), call.seconds)

    def drive(self, steps: Steps[T]) -> T:
        """Runs steps, blocking."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    answer = self._send(step)
                except OSError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return cast(T, end.value)

    async def adrive(self, steps: Steps[T]) -> T:
        """Runs steps on the event loop."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                request = self._endpoint.request("POST", step.path, step.body)
                try:
                    answer = await self._async_pool.call(request, step.seconds)
                except OSError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return cast(T, end.value)

    # Claims by hand. `once` does all of this.

    def terms(
        self,
        namespace: str,
        *,
        mode: Mode = "marked",
        wait: Duration = 30.0,
        lease: Duration = 30.0,
        in_flight_max: Duration | None = None,
        retention: Duration | None = None,
        provider: str | None = None,
        begin: Literal["with_claim", "later"] = "with_claim",
        durable: bool = True,
    ) -> Terms:
        """The terms of an operation's claims."""
        return Terms(
            namespace,
            mode=mode,
            wait=wait,
            lease=lease,
            in_flight_max=in_flight_max,
            retention=retention,
            provider=provider,
            begin=begin,
            durable=durable,
            retry_for=self._retry_for,
        )

    def claim(
        self,
        terms: Terms,
        key: str,
        *,
        scope: Scope = None,
        payload: str | None = None,
        fingerprint: str | None = None,
    ) -> Won | Outcome:
        """Claims a key. A won claim is renewed until it is completed, released or abandoned.

        `payload` is JSON text; `fingerprint` is any text, where the payload is not JSON.
        """
        attempt = Attempt(terms, key, _scope(scope), payload, fingerprint)
        try:
            found = self.drive(_steps.claim(attempt))
        except BaseException:
            if attempt.unheard:
                self.heartbeat.give_back(attempt)
            raise
        if isinstance(found, Won):
            self.heartbeat.add(found)
        return found

    async def aclaim(
        self,
        terms: Terms,
        key: str,
        *,
        scope: Scope = None,
        payload: str | None = None,
        fingerprint: str | None = None,
    ) -> Won | Outcome:
        """As `claim`, on the event loop. A cancelled caller leaves no claim behind."""
        attempt = Attempt(terms, key, _scope(scope), payload, fingerprint)
        try:
            found = await self.adrive(_steps.claim(attempt))
        except BaseException:
            if attempt.unheard:
                self.heartbeat.give_back(attempt)
            raise
        if isinstance(found, Won):
            self.heartbeat.add(found)
        return found

    def complete(
        self, won: Won, text: str | None, *, retention: Duration | None = None, not_kept: str = "it was not given"
    ) -> Outcome | None:
        """Stores an outcome, as JSON text. Returns the outcome that stands, if it is another worker's.

        `None` instead of a text: the effect happened, and its outcome is not kept, for the reason `not_kept`.
        """
        after = _milliseconds(retention)
        try:
            return self.drive(_steps.complete(won, text, after, not_kept))
        except Exception:
            raise
        except BaseException:
            # The process ends. The request may not have arrived, and the effect has happened: once more.
            with contextlib.suppress(Exception):
                self.drive(_steps.complete(won, text, after, not_kept, LAST_TRY))
            raise
        finally:
            self.heartbeat.remove(won)

    async def acomplete(
        self, won: Won, text: str | None, *, retention: Duration | None = None, not_kept: str = "it was not given"
    ) -> Outcome | None:
        """As `complete`, on the event loop."""
        after = _milliseconds(retention)
        try:
            return await self.adrive(_steps.complete(won, text, after, not_kept))
        except Exception:
            raise
        except BaseException:
            # The loop ends, and waits for what it has cancelled.
            with contextlib.suppress(Exception):
                await self.adrive(_steps.complete(won, text, after, not_kept, LAST_TRY))
            raise
        finally:
            self.heartbeat.remove(won)

    def end(self, won: Won, how: Literal["release", "abandon"]) -> None:
        """Releases (nothing happened) or abandons (nobody knows) a claim. The lease ends it if the server cannot be told."""
        self.heartbeat.remove(won)
        try:
            self.drive(_steps.step(won, how))
        except _NOT_ENDED as error:
            _log_not_ended(won, error)

    async def aend(self, won: Won, how: Literal["release", "abandon"]) -> None:
        """As `end`, on the event loop."""
        self.heartbeat.remove(won)
        try:
            await self.adrive(_steps.step(won, how))
        except _NOT_ENDED as error:
            _log_not_ended(won, error)

    # Events and runs.

    def publish(
        self,
        type: str,
        dedupe_key: str,
        payload: object,
        *,
        tenant: str | None = None,
        order_key: str | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
    ) -> dict[str, Any]:
        """Publishes an event. A second one of the same type and key is the same event (`cached`)."""
        return self.drive(self._publish(type, dedupe_key, payload, tenant, order_key, delay, ttl))

    async def apublish(
        self,
        type: str,
        dedupe_key: str,
        payload: object,
        *,
        tenant: str | None = None,
        order_key: str | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
    ) -> dict[str, Any]:
        """As `publish`, on the event loop."""
        return await self.adrive(self._publish(type, dedupe_key, payload, tenant, order_key, delay, ttl))

    def _publish(
        self,
        type: str,
        dedupe_key: str,
        payload: object,
        tenant: str | None,
        order_key: str | None,
        delay: Duration | None,
        ttl: Duration | None,
    ) -> Steps[dict[str, Any]]:
        members = {
            "type": type,
            "dedupe_key": dedupe_key,
            "payload": payload,
            "tenant": tenant,
            "order_key": order_key,
            "delay": _milliseconds(delay),
            "ttl": _milliseconds(ttl),
        }
        return _steps.post("/v1/events", _body(members), seconds(self._retry_for))

    def trigger(
        self,
        target: str,
        payload: object,
        *,
        key: str | None = None,
        tenant: str | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        wait: Duration | None = None,
    ) -> dict[str, Any]:
        """Triggers a run of a target. With `wait`, answers when the run has ended.

        Without a key, a lost answer is not asked for again: that would be another run.
        """
        return self.drive(self._trigger(target, payload, key, tenant, tags, metadata, delay, ttl, wait))

    async def atrigger(
        self,
        target: str,
        payload: object,
        *,
        key: str | None = None,
        tenant: str | None = None,
        tags: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        wait: Duration | None = None,
    ) -> dict[str, Any]:
        """As `trigger`, on the event loop."""
        return await self.adrive(self._trigger(target, payload, key, tenant, tags, metadata, delay, ttl, wait))

    def _trigger(
        self,
        target: str,
        payload: object,
        key: str | None,
        tenant: str | None,
        tags: Sequence[str],
        metadata: dict[str, Any] | None,
        delay: Duration | None,
        ttl: Duration | None,
        wait: Duration | None,
    ) -> Steps[dict[str, Any]]:
        members = {
            "target": target,
            "payload": payload,
            "idempotency_key": key,
            "tenant": tenant,
            "tags": list(tags) or None,
            "metadata": metadata,
            "delay": _milliseconds(delay),
            "ttl": _milliseconds(ttl),
        }
        query, longest = "", _steps.ANSWER_WITHIN
        if wait is not None:
            query, longest = f"?wait=true&timeout={_milliseconds(wait)}", longest + seconds(wait)
        retry_for = seconds(self._retry_for) if key is not None else 0.0
        return _steps.post(f"/v1/runs{query}", _body(members, required=("payload",)), retry_for, longest)


def _body(members: dict[str, Any], required: tuple[str, ...] = ("payload",)) -> bytes:
    given = {name: value for name, value in members.items() if value is not None or name in required}
    return encode_json(given).encode()


def _milliseconds(duration: Duration | None) -> str | None:
    return None if duration is None else f"{round(seconds(duration) * 1000)}ms"


def _log_not_ended(won: Won, error: Exception) -> None:
    if not isinstance(error, _steps.Lost):
        log.warning("claim not ended: key_id=%s error=%s", won.key_id, error)


def _scope(scope: Scope) -> list[str]:
    if scope is None:
        return []
    return [scope] if isinstance(scope, str) else list(scope)


def _after_fork() -> None:
    # Connections and the heartbeat belong to the parent.
    for client in list(_clients):
        client._open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_default: Client | None = None


def default_client() -> Client:
    """The client of the environment's `SEMEL_ADMIN`."""
    global _default
    if _default is None:
        _default = Client()
    return _default


def configure(client: Client) -> None:
    """Makes this the client of every `once` that names none."""
    global _default
    _default = client

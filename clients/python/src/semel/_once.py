"""The decorator."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast

from . import _codec, _steps
from ._client import Client, Scope, default_client
from ._steps import Lost, Outcome, Won
from ._terms import Duration, Mode, Terms
from .errors import (
    ConflictError,
    ExpiredError,
    InDoubtError,
    InFlightError,
    LostError,
    NothingHappened,
    NotKeptError,
    NotStoredError,
    SemelError,
)

P = ParamSpec("P")
R = TypeVar("R")

_current: ContextVar[Claim] = ContextVar("semel_claim")
_background: set[asyncio.Task[Any]] = set()


class Claim:
    """The claim under which the current function runs."""

    __slots__ = ("_client", "_won")

    def __init__(self, client: Client, won: Won) -> None:
        self._client = client
        self._won = won

    @property
    def key_id(self) -> str:
        """The id of the key, as `semel keys` shows it."""
        return self._won.key_id

    @property
    def derived_key(self) -> str:
        """The key to send to `provider`: the same at every attempt, and it reveals nothing."""
        if self._won.derived_key is None:
            raise LookupError("name the receiver to get a key for it: @once(…, provider='acquirer')")
        return self._won.derived_key

    @property
    def fence(self) -> int:
        """Grows with every claim of the key: a receiver that keeps the largest one can refuse a late worker."""
        return self._won.fence

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._won.attempt

    @property
    def epoch(self) -> int:
        """How often an operator asked for this effect to run again."""
        return self._won.epoch

    @property
    def lost(self) -> bool:
        """True once a heartbeat learnt that another worker has the claim. Stop, if you can."""
        return self._won.lost

    def begin(self) -> None:
        """Marks that the effect may start, with `begin="later"`. Call it directly before the effect.

        Raises `LostError` if another worker has the claim: the effect must not start.
        """
        try:
            self._client.drive(_steps.step(self._won, "begin"))
        except Lost as lost:
            raise LostError(str(lost)) from None

    async def abegin(self) -> None:
        """As `begin`, on the event loop."""
        try:
            await self._client.adrive(_steps.step(self._won, "begin"))
        except Lost as lost:
            raise LostError(str(lost)) from None


def current_claim() -> Claim:
    """The claim under which the current function runs."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no function that is run once is running here") from None


def once(
    *,
    key: Callable[..., object],
    scope: Scope | Callable[..., Scope] = None,
    namespace: str | None = None,
    payload: Callable[..., object] | None | Literal["arguments"] = "arguments",
    mode: Mode = "marked",
    wait: Duration = 30.0,
    lease: Duration = 30.0,
    in_flight_max: Duration | None = None,
    retention: Duration | None = None,
    provider: str | None = None,
    begin: Literal["with_claim", "later"] = "with_claim",
    durable: bool = True,
    nothing_happened: type[BaseException] | Sequence[type[BaseException]] = (),
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    client: Client | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Runs a function once per key. Every other call with the key gets the result of the first one.

    `key`, `scope` and `payload` get the function's arguments. `payload` is compared with that of the first call; `None`
    compares nothing.

    `namespace` names the operation: give it. The default is the function's module and qualified name. A function that is
    renamed or moved is then a new operation, and every key runs again; so is one that runs as `__main__`.

    An exception of `nothing_happened`, or a `NothingHappened`, frees the key. After any other exception nobody knows
    whether the effect happened: in `marked` the key is in doubt, in `keyed` and `rerun` the next call runs it again.

    A function that returns a coroutine, another awaitable or a generator instead of a result is a `TypeError`, and counts as such
    an exception: make it `async def`.

    The result comes back as the return annotation says. One that has no form in JSON is a `NotStoredError` with the result,
    and every later call a `NotKeptError`.

    `durable=False` does not wait until the outcome is stored. `begin="later"` leaves the begin mark to
    `current_claim().begin()`.
    """
    errors = (nothing_happened,) if isinstance(nothing_happened, type) else tuple(nothing_happened)
    for error in errors:
        # Found now, and not after the effect.
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise TypeError(f"nothing_happened: expected exception types, found {error!r}")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        operation = _Operation(
            function=function,
            key=key,
            scope=scope,
            payload=payload,
            namespace=namespace or f"{function.__module__}.{function.__qualname__}",
            terms={
                "mode": mode,
                "wait": wait,
                "lease": lease,
                "in_flight_max": in_flight_max,
                "retention": retention,
                "provider": provider,
                "begin": begin,
                "durable": durable,
            },
            nothing_happened=(NothingHappened, *errors),
            encode=encode or _codec.identity,
            decode=decode or _codec.decoder(function),
            client=client,
        )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator has no result that could be stored")
        # The second: an object whose call is `async def`.
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                return await operation.run_async(args, kwargs)

            return cast(Callable[P, R], run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return operation.run(args, kwargs)

        return cast(Callable[P, R], run)

    return decorate


class _Operation:
    """A decorated function."""

    def __init__(
        self,
        *,
        function: Callable[..., Any],
        key: Callable[..., object],
        scope: Scope | Callable[..., Scope],
        payload: Callable[..., object] | None | Literal["arguments"],
        namespace: str,
        terms: dict[str, Any],
        nothing_happened: tuple[type[BaseException], ...],
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        client: Client | None,
    ) -> None:
        self.function = function
        self.key = key
        self.scope = scope
        self.payload = payload
        self.namespace = namespace
        self.term_values = terms
        self.nothing_happened = nothing_happened
        self.encode = encode
        self.decode = decode
        self.given_client = client
        self.signature = inspect.signature(function)
        self.ready: tuple[Client, Terms] | None = None

    def open(self) -> tuple[Client, Terms]:
        client = self.given_client or default_client()
        if self.ready is None or self.ready[0] is not client:
            self.ready = (client, client.terms(self.namespace, **self.term_values))
        return self.ready

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Scope, str | None]:
        """Key, scope and payload of a call."""
        key = self.key(*args, **kwargs)
        scope = self.scope(*args, **kwargs) if callable(self.scope) else self.scope
        if self.payload is None:
            return str(key), scope, None
        if self.payload == "arguments":
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return str(key), scope, _codec.encode_json(bound.arguments)
        return str(key), scope, _codec.encode_json(self.payload(*args, **kwargs))

    def encoded(self, result: Any) -> _Encoded:
        """The result as JSON. It never raises: the effect has happened, and its claim has to be completed."""
        try:
            return _Encoded(_codec.encode_json(self.encode(result)), None)
        except BaseException as error:
            return _Encoded(None, error)

    def returned(self, encoded: _Encoded, result: Any, other: Outcome | None) -> Any:
        """What the caller gets once the outcome is stored: the same as all others."""
        if other is not None:
            return self.decode(other.value)
        if encoded.error is None:
            return self.decode(json.loads(encoded.text or "null"))
        if not isinstance(encoded.error, Exception):
            raise encoded.error
        told = "the effect happened, and its result has no form in JSON: correct it, or give `encode` to once()"
        raise NotStoredError(told, result) from encoded.error

    def how_to_end(self, error: BaseException) -> Literal["release", "abandon"]:
        return "release" if isinstance(error, self.nothing_happened) else "abandon"

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        client, terms = self.open()
        key, scope, payload = self.ask(args, kwargs)
        found = client.claim(terms, key, scope=scope, payload=payload)
        if isinstance(found, Outcome):
            return self.decode(found.value)
        token = _current.set(Claim(client, found))
        try:
            result = self.function(*args, **kwargs)
        except BaseException as error:
            client.end(found, self.how_to_end(error))
            raise
        finally:
            _current.reset(token)
        if is_unfinished(result):
            client.end(found, "abandon")
            raise unfinished(result)
        encoded = self.encoded(result)
        try:
            try:
                other = client.complete(found, encoded.text, not_kept=encoded.not_kept)
            except Lost:
                other = self.follow(client, client.claim(terms, key, scope=scope, payload=payload), encoded)
        except _ANSWERS:
            raise
        except Exception as error:
            raise after_the_effect(error, result) from error
        return self.returned(encoded, result, other)

    def follow(self, client: Client, found: Won | Outcome, encoded: _Encoded) -> Outcome | None:
        """Another worker took the claim: its outcome stands. If it died, the one of this call does."""
        if isinstance(found, Outcome):
            return found
        return client.complete(found, encoded.text, not_kept=encoded.not_kept)

    async def run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        client, terms = self.open()
        key, scope, payload = self.ask(args, kwargs)
        found = await client.aclaim(terms, key, scope=scope, payload=payload)
        if isinstance(found, Outcome):
            return self.decode(found.value)
        # In a task of its own: a caller that is cancelled does not stop an effect that has begun.
        task = asyncio.ensure_future(self.run_won(client, terms, found, (key, scope, payload), args, kwargs))
        _background.add(task)
        task.add_done_callback(_background.discard)
        return await asyncio.shield(task)

    async def run_won(
        self,
        client: Client,
        terms: Terms,
        found: Won,
        asked: tuple[str, Scope, str | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        _current.set(Claim(client, found))
        try:
            result = await self.function(*args, **kwargs)
        except BaseException as error:
            await client.aend(found, self.how_to_end(error))
            raise
        if is_unfinished(result):
            await client.aend(found, "abandon")
            raise unfinished(result)
        encoded = self.encoded(result)
        try:
            try:
                other = await client.acomplete(found, encoded.text, not_kept=encoded.not_kept)
            except Lost:
                key, scope, payload = asked
                again = await client.aclaim(terms, key, scope=scope, payload=payload)
                other = again if isinstance(again, Outcome) else None
                if isinstance(again, Won):
                    other = await client.acomplete(again, encoded.text, not_kept=encoded.not_kept)
        except _ANSWERS:
            raise
        except Exception as error:
            raise after_the_effect(error, result) from error
        return self.returned(encoded, result, other)


class _Encoded(NamedTuple):
    """A result on its way to the record."""

    text: str | None
    error: BaseException | None
    """Why there is no text."""

    @property
    def not_kept(self) -> str:
        """What the record says if there is no text. Names the error only: its message may hold what is secret."""
        return f"the result has no form in JSON: {type(self.error).__name__}"


def is_unfinished(result: object) -> bool:
    """True if the function returned something that has yet to run, so that nobody knows what happens or when."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


def unfinished(result: object) -> TypeError:
    """What the caller learns of such a function. A coroutine is closed: it must not run without a claim."""
    if inspect.iscoroutine(result):
        result.close()
    kind = type(result).__name__
    return TypeError(f"the function returned before its work was done: a {kind}; make it `async def` and await the {kind} in it")


# They say what stands in the record.
_ANSWERS = (ConflictError, ExpiredError, InDoubtError, NotKeptError)


def after_the_effect(error: Exception, result: Any) -> SemelError:
    """What the caller learns if the function ran, and its outcome does not stand."""
    if isinstance(error, (Lost, InFlightError)):
        return LostError("the function ran, and another worker has the claim now")
    return NotStoredError("the effect happened, and its outcome could not be stored", result)

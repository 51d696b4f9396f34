"""Faults of the network, of applications and of processes. Run by `python -m unittest faults`; `SEMEL_ADMIN` is a real server.

Between client and server stands a link that can cut or stall its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import enum
import gc
import json
import os
import socket
import threading
import time
import unittest
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlsplit

import semel
from semel import _gateway, _heartbeat, _steps, _wire, _wire_async
from semel._wire import Answer
from semel.asgi import IdempotencyMiddleware

ADMIN = os.environ["SEMEL_ADMIN"]
PATIENCE = 30.0


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.01)


class Link:
    """A TCP relay to the server."""

    def __init__(self) -> None:
        self.accepted = 0
        self.stall_next = 0
        """For this number of next connections, requests arrive and answers do not."""
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        server = urlsplit(ADMIN)
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            stalled, self.stall_next = self.stall_next > 0, max(0, self.stall_next - 1)
            outer = socket.create_connection((server.hostname, server.port))
            self._open |= {inner, outer}
            threading.Thread(target=self._relay, args=(inner, outer, False), daemon=True).start()
            threading.Thread(target=self._relay, args=(outer, inner, stalled), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, to: socket.socket, swallow: bool) -> None:
        try:
            while piece := source.recv(1 << 16):
                if not swallow:
                    to.sendall(piece)
        except OSError:
            pass
        finally:
            source.close()

    def cut(self) -> None:
        """Closes all connections, as a server that ends does."""
        for one in list(self._open):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()


class LinkCase(unittest.TestCase):
    def setUp(self) -> None:
        self.link = Link()
        self.addCleanup(self.link.close)

    def client(self, **options: Any) -> semel.Client:
        client = semel.Client(self.link.url, **options)
        self.addCleanup(client.close)
        return client


class Connections(LinkCase):
    # A burst leaves many idle connections. After a restart each of them failed once, with growing pauses in between, until the time of
    # the caller was over.
    def test_a_restart_after_a_burst_costs_one_retry(self) -> None:
        client = self.client(retry_for=0.5)
        barrier = threading.Barrier(30)

        @semel.once(key=lambda key: key, namespace="burst", client=client)
        def effect(key: str) -> str:
            barrier.wait()  # all of them hold a connection at the same time
            return key

        def complete_together(number: int) -> None:
            effect(f"{uuid.uuid4()}-{number}")

        threads = [threading.Thread(target=complete_together, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        idle = len(client._pool._idle)
        self.assertGreater(idle, 8, "a burst leaves many idle connections")
        self.link.cut()
        won = client.claim(client.terms("burst"), str(uuid.uuid4()))
        self.assertIsInstance(won, semel.Won)

    # Two event loops took the connections from each other, and left them open at the end.
    def test_event_loops_keep_their_own_connections_and_close_them(self) -> None:
        client = self.client()

        @semel.once(key=lambda key: key, namespace="loops", client=client)
        async def effect(key: str) -> str:
            return key

        async def work() -> None:
            for _ in range(20):
                await effect(str(uuid.uuid4()))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gc.collect()
        self.assertLessEqual(self.link.accepted, 3, "one connection for each loop")
        leaks = [str(one.message) for one in caught if issubclass(one.category, ResourceWarning) and "transport" in str(one.message)]
        self.assertEqual(leaks, [])
        self.assertEqual(sum(len(one.idle) for one in client._async_pool._loops.values()), 0)

    # The answer to a claim is stalled, not lost. The second request wins the claim again, with a part of its lease gone.
    def test_a_stalled_claim_is_asked_for_again_and_renewed_in_time(self) -> None:
        for run in (self.claim_blocking, self.claim_on_a_loop):
            self.link.stall_next = 1
            client = self.client()
            terms = client.terms("stalled", lease=6, wait=0)
            won, now = run(client, terms)
            self.assertIsInstance(won, semel.Won)
            self.assertEqual(won.attempt, 1)
            self.assertLessEqual(won.due - now, 1.1, "a sixth of the lease was over before")
            client.end(won, "release")

    def claim_blocking(self, client: semel.Client, terms: semel.Terms) -> tuple[Any, float]:
        return client.claim(terms, str(uuid.uuid4())), time.monotonic()

    def claim_on_a_loop(self, client: semel.Client, terms: semel.Terms) -> tuple[Any, float]:
        return asyncio.run(client.aclaim(terms, str(uuid.uuid4()))), time.monotonic()

    def test_one_request_takes_half_of_a_lease_at_most(self) -> None:
        terms = self.client().terms("bounds", lease=30, wait=60)
        call = next(_steps.claim(_steps.Attempt(terms, "k", [], None, None)))
        self.assertIsInstance(call, _steps.Call)
        self.assertLessEqual(call.seconds, 15)


class Outcomes(LinkCase):
    # The server reads up to twice the largest outcome. Of a larger body it answered 413, which the client took for a wrong setting; in
    # `keyed` the effect then ran again.
    def test_an_outcome_of_any_size_is_not_run_again(self) -> None:
        client, runs = self.client(), []

        def effect(key: str) -> str:
            runs.append(key)
            return "x" * (3 << 20)

        async def effect_async(key: str) -> str:
            return effect(key)

        for durable in (True, False):
            once = semel.once(key=lambda key: key, namespace="large", mode="keyed", provider="p", durable=durable, client=client)
            key = str(uuid.uuid4())
            self.assertEqual(len(once(effect)(key)), 3 << 20)
            with self.assertRaises(semel.NotKeptError):
                once(effect)(key)
            other = str(uuid.uuid4())
            self.assertEqual(len(asyncio.run(once(effect_async)(other))), 3 << 20)
            with self.assertRaises(semel.NotKeptError):
                asyncio.run(once(effect_async)(other))
        self.assertEqual(len(runs), 4)

    def test_after_the_effect_an_unavailable_server_is_not_stored(self) -> None:
        client = self.client()

        @semel.once(key=lambda key: key, namespace="late", client=client)
        def effect(key: str) -> str:
            def unavailable(*_: Any, **__: Any) -> None:
                raise semel.UnavailableError("no answer")

            def lost(*_: Any, **__: Any) -> None:
                raise _steps.Lost({})

            client.complete, client.claim = lost, unavailable  # type: ignore[method-assign]
            return "receipt"

        with self.assertRaises(semel.NotStoredError) as raised:
            effect(str(uuid.uuid4()))
        self.assertEqual(raised.exception.result, "receipt")

    def test_begin_on_a_lost_claim_raises_a_public_error(self) -> None:
        client = self.client()

        @semel.once(key=lambda key: key, namespace="late", begin="later", client=client)
        def effect(key: str) -> None:
            claim = semel.current_claim()
            client.end(claim._won, "release")
            claim.begin()

        @semel.once(key=lambda key: key, namespace="late", begin="later", client=client)
        async def effect_async(key: str) -> None:
            claim = semel.current_claim()
            await client.aend(claim._won, "release")
            await claim.abegin()

        with self.assertRaises(semel.LostError):
            effect(str(uuid.uuid4()))
        with self.assertRaises(semel.LostError):
            asyncio.run(effect_async(str(uuid.uuid4())))


class AfterTheEffect(LinkCase):
    """The effect has happened. Whatever goes wrong then, it does not run again."""

    CIRCULAR: list[Any] = []
    CIRCULAR.append(CIRCULAR)

    def effects(self, result: Any, error: BaseException | None = None, **options: Any) -> tuple[list[Callable[[str], Any]], list[str]]:
        """The same function, blocking and on a loop, and the keys of its runs."""
        client, runs = self.client(), []

        def effect(key: str) -> Any:
            runs.append(key)
            if error is not None:
                raise error
            return result

        async def effect_async(key: str) -> Any:
            return effect(key)

        once = semel.once(key=lambda key: key, client=client, **{"namespace": "after", **options})
        return [once(effect), lambda key: asyncio.run(once(effect_async)(key))], runs

    # The error of the encoder counted as an error of the function. With `nothing_happened=ValueError` a result with NaN freed its
    # key, and the effect happened again.
    def test_a_result_without_a_form_in_json_is_not_run_again(self) -> None:
        def failing(_: Any) -> Any:
            raise RuntimeError("no connection to the vault")

        cases: list[tuple[Any, dict[str, Any]]] = [
            (float("nan"), {}),
            (self.CIRCULAR, {}),
            (object(), {}),
            ({(1, 2): "a key that is no text"}, {}),
            ("receipt", {"encode": failing}),
        ]
        for result, options in cases:
            for mode in ("marked", "keyed", "rerun"):
                happened = (ValueError, TypeError, RuntimeError)
                calls, runs = self.effects(result, mode=mode, nothing_happened=happened, **options)
                for call in calls:
                    key = str(uuid.uuid4())
                    with self.assertRaises(semel.NotStoredError) as raised:
                        call(key)
                    self.assertIs(raised.exception.result, result)
                    self.assertIsNotNone(raised.exception.__cause__)
                    with self.assertRaises(semel.NotKeptError):
                        call(key)
                self.assertEqual(len(runs), 2, f"{mode}: {options}")

    # A function that is not `async def` returned its coroutine. Nobody awaited it, and its key counted as done: the effect was lost.
    def test_a_result_that_has_yet_to_run_is_refused(self) -> None:
        effects: list[str] = []

        async def effect(key: str) -> str:
            effects.append(key)
            return "receipt"

        def generator() -> Iterator[str]:
            yield "receipt"

        async def async_generator() -> AsyncIterator[str]:
            yield "receipt"

        client = self.client()
        for make in (lambda: effect("lost"), generator, async_generator):

            @semel.once(key=lambda key: key, namespace="unfinished", client=client, payload=None)
            def blocking(key: str, make: Any = make) -> Any:
                return make()

            @semel.once(key=lambda key: key, namespace="unfinished", client=client, payload=None)
            async def on_a_loop(key: str, make: Any = make) -> Any:
                return make()

            calls: list[Callable[[str], Any]] = [
                lambda key, call=blocking: call(key),
                lambda key, call=on_a_loop: asyncio.run(call(key)),
            ]
            for call in calls:
                key = str(uuid.uuid4())
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # a coroutine was never awaited
                    with self.assertRaisesRegex(TypeError, "returned before its work was done: a "):
                        call(key)
                with self.assertRaises(semel.InDoubtError):
                    call(key)
        self.assertEqual(effects, [])

    def test_an_object_with_an_async_call_runs_on_the_loop(self) -> None:
        class Effect:
            runs = 0

            async def __call__(self, key: str) -> str:
                self.runs += 1
                return f"receipt-{self.runs}"

        effect = Effect()
        call: Any = semel.once(key=lambda key: key, namespace="object", client=self.client())(effect)
        key = str(uuid.uuid4())
        self.assertEqual([asyncio.run(call(key)), asyncio.run(call(key))], ["receipt-1"] * 2)
        self.assertEqual(effect.runs, 1)

    # Its text could not be written as bytes. The claim was neither completed nor renewed, and `keyed` and `rerun` ran again.
    def test_a_lone_surrogate_in_a_result_is_stored(self) -> None:
        for mode in ("marked", "keyed", "rerun"):
            calls, runs = self.effects({"name\udcff": "caf\ud800", "pair": "\ud83d\ude00"}, mode=mode)
            for call in calls:
                key = str(uuid.uuid4())
                expected = {"name\udcff": "caf\ud800", "pair": "\U0001f600"}
                self.assertEqual((call(key), call(key)), (expected, expected))
            self.assertEqual(len(runs), 2)

    def test_a_lone_surrogate_in_a_key_is_refused_before_the_effect(self) -> None:
        calls, runs = self.effects("receipt", payload=None)
        for call in calls:
            with self.assertRaises(semel.RequestError):
                call("order-\ud800")
        self.assertEqual(runs, [])

    # A proxy answered 200 with a page of its own. The error of the parser left the claim as it was.
    def test_an_answer_that_is_not_json_is_asked_for_again(self) -> None:
        for strange in (b"<html>", b"[]", b"\xff", b""):
            steps = _steps.post("/v1/claims/1/complete", b"", 10.0)
            next(steps)
            self.assertIsInstance(steps.send(Answer(200, strange, None)), _steps.Pause)
            self.assertIsInstance(steps.send(None), _steps.Call)
            with self.assertRaises(StopIteration) as end:
                steps.send(Answer(200, b'{"status": "done"}', None))
            self.assertEqual(end.exception.value, {"status": "done"})

    # Something in between can refuse an outcome by its content.
    def test_an_outcome_that_is_refused_is_not_kept_and_not_run_again(self) -> None:
        calls, runs = self.effects("receipt", mode="rerun")
        refused = Answer(403, b'{"code": "firewall", "detail": "no", "retryable": false}', None)
        for call in calls:
            key = str(uuid.uuid4())
            with self.tampered(b'"outcome"', lambda: refused):
                self.assertEqual(call(key), "receipt")
            with self.assertRaises(semel.NotKeptError):
                call(key)
        self.assertEqual(len(runs), 2)

    @contextlib.contextmanager
    def tampered(self, part: bytes, answer: Callable[[], Any]) -> Iterator[None]:
        """Requests with this part are answered here."""
        blocking, on_a_loop = _wire.Pool.call, _wire_async.AsyncPool.call

        def call(pool: Any, request: bytes, seconds: float) -> Any:
            return answer() if part in request else blocking(pool, request, seconds)

        async def acall(pool: Any, request: bytes, seconds: float) -> Any:
            if part not in request:
                return await on_a_loop(pool, request, seconds)
            answered = answer()
            return await answered if asyncio.iscoroutine(answered) else answered

        with mock.patch.object(_wire.Pool, "call", call), mock.patch.object(_wire_async.AsyncPool, "call", acall):
            yield

    # Ctrl-C while an outcome was being stored: the request may not have arrived.
    def test_an_interrupt_during_the_completion_stores_the_outcome(self) -> None:
        blocking = _wire.Pool.call
        for interrupt in (KeyboardInterrupt, SystemExit):
            (call, _), runs = self.effects("receipt", mode="rerun")
            key, pending = str(uuid.uuid4()), [interrupt()]

            def interrupted(pool: Any, request: bytes, seconds: float) -> Any:
                if b"/complete" in request and pending:
                    raise pending.pop()
                return blocking(pool, request, seconds)

            with mock.patch.object(_wire.Pool, "call", interrupted), self.assertRaises(interrupt):
                call(key)
            self.assertEqual(call(key), "receipt")
            self.assertEqual(len(runs), 1)

    # `asyncio.run` cancels what is left when it ends.
    def test_the_end_of_the_loop_during_the_completion_stores_the_outcome(self) -> None:
        client, runs = self.client(), []
        completing: list[asyncio.Event] = []
        on_a_loop = _wire_async.AsyncPool.call

        async def stalled(pool: Any, request: bytes, seconds: float) -> Any:
            if b"/complete" in request and not completing[0].is_set():
                completing[0].set()
                await asyncio.sleep(PATIENCE)
            return await on_a_loop(pool, request, seconds)

        @semel.once(key=lambda key: key, namespace="after", mode="rerun", client=client)
        async def effect(key: str) -> str:
            runs.append(key)
            return "receipt"

        async def end_while_completing(key: str) -> None:
            completing.append(asyncio.Event())
            caller = asyncio.ensure_future(effect(key))
            await completing[0].wait()
            caller.cancel()

        key = str(uuid.uuid4())
        with mock.patch.object(_wire_async.AsyncPool, "call", stalled):
            asyncio.run(end_while_completing(key))
        self.assertEqual(asyncio.run(effect(key)), "receipt")
        self.assertEqual(len(runs), 1)

    # The token was revoked while the function ran: callers saw that, and not what the function raised.
    def test_an_error_of_the_function_is_raised_whatever_the_server_says(self) -> None:
        refused = Answer(401, b'{"code": "unauthorized", "detail": "unknown token", "retryable": false}', None)
        for part, happened in ((b"/abandon", ()), (b"/release", KeyError)):
            calls, _ = self.effects(None, KeyError("no such card"), nothing_happened=happened)
            for call in calls:
                with self.tampered(part, lambda: refused), self.assertLogs("semel", "WARNING"):
                    with self.assertRaises(KeyError):
                        call(str(uuid.uuid4()))

    def test_what_is_no_exception_type_is_refused_at_once(self) -> None:
        for wrong in ("ValueError", ["ValueError"], [ValueError()], int):
            with self.assertRaises(TypeError):
                semel.once(key=lambda key: key, nothing_happened=wrong)  # type: ignore[arg-type]


class Currency(enum.Enum):
    EUR = "eur"
    POINTS = 1


class Place(NamedTuple):
    name: str
    since: datetime.date | None


@dataclasses.dataclass
class Line:
    sku: uuid.UUID
    price: decimal.Decimal
    currency: Currency
    parts: list[Line] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Receipt:
    at: datetime.datetime
    lines: list[Line]
    by_day: dict[int, datetime.date]
    place: Place
    tags: frozenset[str]
    pair: tuple[Currency, datetime.time]
    note: str | datetime.datetime | None = None
    total: decimal.Decimal = dataclasses.field(init=False, default=decimal.Decimal(0))


class Results(unittest.TestCase):
    """Results are what the return annotation says, for the first caller and for all others."""

    def twice(self, function: Callable[[], Any], **options: Any) -> list[Any]:
        key = str(uuid.uuid4())
        once = semel.once(key=lambda: key, namespace="results", client=semel.Client(ADMIN), **options)(function)
        return [once(), once()]

    # Only the outermost type was looked at: members of a dataclass came back as dicts and texts.
    def test_they_have_the_annotated_types_at_every_depth(self) -> None:
        line = Line(uuid.uuid4(), decimal.Decimal("1.10"), Currency.EUR)
        whole = Receipt(
            at=datetime.datetime(2026, 11, 19, 1, 2, 3, 4, datetime.timezone.utc),
            lines=[dataclasses.replace(line, parts=[line])],
            by_day={1: datetime.date(2026, 11, 19)},
            place=Place("Bonn", None),
            tags=frozenset({"a", "b"}),
            pair=(Currency.POINTS, datetime.time(4, 5)),
            note="soon",
        )
        object.__setattr__(whole, "total", decimal.Decimal("2.20"))

        def receipt() -> Receipt:
            return whole

        def receipts() -> list[Receipt | None]:
            return [whole, None]

        def moment() -> datetime.datetime:
            return whole.at

        def none() -> datetime.datetime | None:
            return None

        def by_name() -> dict[str, list[Line]]:
            return {"one": [line]}

        def either() -> Line | Receipt:
            return whole

        def several() -> tuple[Place, ...]:
            return (whole.place, Place("Köln", datetime.date(2026, 1, 1)))

        for function in (receipt, receipts, moment, none, by_name, either, several):
            self.assertEqual(self.twice(function), [function(), function()], function.__name__)

    def test_without_an_annotation_they_are_what_json_makes_of_them(self) -> None:
        def plain():  # type: ignore[no-untyped-def]
            return {1: (Currency.EUR, datetime.date(2026, 1, 1))}

        def unknown() -> NoSuchType:  # type: ignore[name-defined]  # noqa: F821
            return plain()

        for function in (plain, unknown):
            self.assertEqual(self.twice(function), [{"1": ["eur", "2026-01-01"]}] * 2)

    def test_a_wrong_annotation_is_an_error_for_every_caller_and_the_effect_is_not_repeated(self) -> None:
        runs = []

        def soon() -> datetime.datetime:
            runs.append(1)
            return "soon"  # type: ignore[return-value]

        key = str(uuid.uuid4())
        once = semel.once(key=lambda: key, namespace="results", mode="rerun", client=semel.Client(ADMIN))(soon)
        for _ in range(2):
            with self.assertRaisesRegex(TypeError, "annotation"):
                once()
        self.assertEqual(len(runs), 1)


class Heartbeats(unittest.TestCase):
    def won(self, lease: float) -> semel.Won:
        terms = semel.Client(ADMIN).terms("beats", lease=lease)
        return semel.Won({"claim_id": uuid.uuid4().hex, "key_id": "", "fence": 1, "attempt": 1, "epoch": 1}, terms)

    def test_nothing_ends_the_renewals(self) -> None:
        strange = [b"", b"[]", b'{"results": [5]}', b'{"results": {"a": 1}}', b'{"results": [{"problem": 5}]}', b"null"]
        sent: list[bytes] = []

        def send(call: _steps.Call) -> Answer:
            sent.append(call.body)
            return Answer(200, strange[len(sent) % len(strange)], None)

        heartbeat = _heartbeat.Heartbeat(send, lambda _: True)
        self.addCleanup(heartbeat.close)
        with self.assertLogs("semel", "WARNING"):
            won = self.won(0.3)
            heartbeat.add(won)
            wait_until(lambda: len(sent) > 2 * len(strange), "it goes on")
        heartbeat.remove(won)

    def test_a_give_back_that_is_stalled_does_not_hold_up_renewals(self) -> None:
        sent: list[bytes] = []
        stalled, free = threading.Event(), threading.Event()
        self.addCleanup(free.set)

        def send(call: _steps.Call) -> Answer:
            sent.append(call.body)
            return Answer(200, b'{"results": [{"result": {}}]}', None)

        def drive(_: Any) -> bool:
            stalled.set()
            free.wait(PATIENCE)
            return True

        heartbeat = _heartbeat.Heartbeat(send, drive)
        self.addCleanup(heartbeat.close)
        won = self.won(0.3)
        heartbeat.give_back(_steps.Attempt(won.terms, "k", [], None, None))
        self.assertTrue(stalled.wait(PATIENCE))
        heartbeat.add(won)
        wait_until(lambda: len(sent) > 2, "renewals go on")
        self.assertFalse(free.is_set())
        heartbeat.remove(won)

    def test_close_ends_the_threads_once_no_claim_is_held(self) -> None:
        client = semel.Client(ADMIN)
        running = lambda: client.heartbeat._renewer._thread is not None
        won = client.claim(client.terms("closing"), str(uuid.uuid4()))
        assert isinstance(won, semel.Won)
        self.assertTrue(running())
        client.close()
        client.heartbeat._renewer.wake()
        time.sleep(0.05)
        self.assertTrue(running(), "a claim that is held is renewed")
        client.end(won, "release")
        client.close()
        wait_until(lambda: not running(), "it ends")
        again = client.claim(client.terms("closing"), str(uuid.uuid4()))
        assert isinstance(again, semel.Won)
        self.assertTrue(running(), "the client can be used again")
        client.end(again, "release")
        client.close()


Reply = tuple[int, dict[str, str], bytes]


def request(to: Any, key: str, body: bytes = b"{}", **scope: Any) -> Reply:
    """A request to an ASGI application. Raises what the application raised."""
    return asyncio.run(arequest(to, key, body, **scope))


async def arequest(to: Any, key: str, body: bytes = b"{}", **scope: Any) -> Reply:
    sent: list[Any] = []
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return pending.pop() if pending else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", key.encode()), (b"authorization", b"Bearer x")]
    full = {"type": "http", "method": "POST", "path": "/orders", "raw_path": b"/orders", "query_string": b"", "headers": headers}
    await to({**full, **scope}, receive, send)
    head = next(message for message in sent if message["type"] == "http.response.start")
    parts = [message.get("body", b"") for message in sent if message["type"] == "http.response.body"]
    return head["status"], {bytes(n).decode(): bytes(v).decode() for n, v in head["headers"]}, b"".join(parts)


def code(reply: Reply) -> Any:
    return json.loads(reply[2])["code"]


class Asgi(unittest.TestCase):
    def guard(self, app: Any, **options: Any) -> tuple[Any, list[str]]:
        effects: list[str] = []

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            effects.append("")
            await app(scope, receive, send, len(effects))

        return IdempotencyMiddleware(counted, client=semel.Client(ADMIN), **options), effects

    async def reply(self, send: Any, body: bytes = b"made", status: int = 201, **headers: str) -> None:
        lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": body})

    def test_an_error_before_the_head_frees_the_key(self) -> None:
        async def app(_: Any, __: Any, send: Any, run: int) -> None:
            if run == 1:
                raise RuntimeError("database unavailable")
            await self.reply(send)

        guarded, effects = self.guard(app)
        key = str(uuid.uuid4())
        with self.assertRaises(RuntimeError):
            request(guarded, key)
        self.assertEqual(request(guarded, key)[0], 201)
        self.assertEqual(len(effects), 2)

    # A server that stops cancels its requests after their effects have begun. Their keys were freed, and retries ran again.
    def test_a_request_that_was_cancelled_is_in_doubt(self) -> None:
        async def app(_: Any, __: Any, ___: Any, ____: int) -> None:
            await asyncio.sleep(PATIENCE)

        guarded, effects = self.guard(app)
        key = str(uuid.uuid4())

        async def stop() -> None:
            task = asyncio.ensure_future(arequest(guarded, key))
            while not effects:
                await asyncio.sleep(0.01)
            for other in asyncio.all_tasks() - {asyncio.current_task()}:
                other.cancel()  # as the end of the loop does
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.1)

        asyncio.run(stop())
        self.assertEqual(code(request(guarded, key)), "in_doubt")
        self.assertEqual(len(effects), 1)

    def test_an_answer_that_breaks_off_after_its_head_is_in_doubt(self) -> None:
        async def broken(_: Any, __: Any, send: Any, ___: int) -> None:
            await send({"type": "http.response.start", "status": 201, "headers": []})
            raise RuntimeError("the template is broken")

        async def broken_stream(_: Any, __: Any, send: Any, ___: int) -> None:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            raise RuntimeError("the source is gone")

        async def unfinished_stream(_: Any, __: Any, send: Any, ___: int) -> None:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})

        for app in (broken, broken_stream, unfinished_stream):
            guarded, effects = self.guard(app)
            key = str(uuid.uuid4())
            try:
                request(guarded, key)
            except RuntimeError:
                pass
            self.assertEqual(code(request(guarded, key)), "in_doubt", app.__name__)
            self.assertEqual(len(effects), 1)

    def test_streams_and_large_answers_are_not_kept_and_not_run_again(self) -> None:
        async def stream(_: Any, __: Any, send: Any, ___: int) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
            await send({"type": "http.response.body", "body": b"data: 1\n\n"})

        async def large(_: Any, __: Any, send: Any, ___: int) -> None:
            await self.reply(send, b"x" * (3 << 20))

        for app in (stream, large):
            guarded, effects = self.guard(app)
            key = str(uuid.uuid4())
            self.assertLess(request(guarded, key)[0], 300)
            self.assertEqual(code(request(guarded, key)), "outcome_not_kept", app.__name__)
            self.assertEqual(len(effects), 1)

    # The server sends the file, so the middleware stored an answer without a body.
    def test_a_file_that_the_server_would_send_is_stored(self) -> None:
        async def app(scope: Any, _: Any, send: Any, __: int) -> None:
            if "http.response.pathsend" in scope["extensions"]:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.pathsend", "path": "/receipt.pdf"})
            else:
                await self.reply(send, b"the receipt")

        guarded, effects = self.guard(app)
        key = str(uuid.uuid4())
        extensions: dict[str, dict[str, Any]] = {"http.response.pathsend": {}, "tls": {"tls_version": 772}}
        for _ in range(2):
            reply = request(guarded, key, extensions=extensions)
            self.assertEqual((reply[0], reply[2]), (201, b"the receipt"))
        self.assertEqual(len(effects), 1)
        self.assertIn("http.response.pathsend", extensions, "the server's own scope is as it was")

    def test_the_application_decides_what_is_stored(self) -> None:
        async def app(_: Any, __: Any, send: Any, run: int) -> None:
            await self.reply(send, str(run).encode(), Idempotency_Store="no", Idempotency_Retention="3600")

        guarded, effects = self.guard(app)
        key = str(uuid.uuid4())
        first = request(guarded, key)
        self.assertEqual((first[0], first[1]), (201, {"idempotency-stored": "false"}))
        self.assertEqual(request(guarded, key)[2], b"2")

        async def short(_: Any, __: Any, send: Any, run: int) -> None:
            await self.reply(send, str(run).encode(), Idempotency_Retention="1")

        guarded, effects = self.guard(short)
        client, complete = guarded._client, guarded._client.acomplete
        retentions: list[Any] = []

        async def spy(won: Any, text: Any, *, retention: Any = None, **how: Any) -> Any:
            retentions.append(retention)
            return await complete(won, text, retention=retention, **how)

        client.acomplete = spy
        self.assertNotIn("idempotency-retention", request(guarded, str(uuid.uuid4()))[1])
        self.assertEqual(retentions, [1.0])

    def test_a_lost_claim_follows_the_record(self) -> None:
        async def app(_: Any, __: Any, send: Any, ___: int) -> None:
            await self.reply(send, b"mine")

        guarded, _ = self.guard(app)
        client, complete = guarded._client, guarded._client.acomplete

        async def lost(won: Any, text: Any, **how: Any) -> Any:
            client.acomplete = complete
            document = {"status": 201, "headers": [], "body": "theirs"}
            await complete(won, json.dumps(document), **how)
            raise _steps.Lost({})

        client.acomplete = lost
        status, headers, body = request(guarded, str(uuid.uuid4()))
        self.assertEqual((status, headers, body), (201, {"idempotent-replayed": "true"}, b"theirs"))

    # The same key and body in two mounted applications are two requests.
    def test_mounted_applications_have_the_path_of_the_client(self) -> None:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import PlainTextResponse
        from starlette.routing import Mount, Route

        client = semel.Client(ADMIN)

        def mounted(name: str) -> Starlette:
            async def create(_: Any) -> PlainTextResponse:
                return PlainTextResponse(name, 201)

            routes = [Route("/items", create, methods=["POST"])]
            return Starlette(routes=routes, middleware=[Middleware(IdempotencyMiddleware, client=client)])

        app = Starlette(routes=[Mount("/orders", mounted("order")), Mount("/refunds", mounted("refund"))])
        for raw in (True, False):
            key = str(uuid.uuid4())

            def send(path: str) -> Reply:
                return request(app, key, path=path, raw_path=path.encode() if raw else None, root_path="", app=app)

            self.assertEqual(send("/orders/items")[2], b"order")
            self.assertEqual(send("/orders/items")[1].get("idempotent-replayed"), "true")
            self.assertEqual(code(send("/refunds/items")), "conflict", f"raw_path: {raw}")


class Django(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        import django
        from django.conf import settings

        settings.configure(SECRET_KEY="test", ALLOWED_HOSTS=["*"], SEMEL_ADMIN=ADMIN)
        django.setup()

    def guard(self, view: Callable[[Any, int], Any]) -> tuple[Callable[..., Any], list[str]]:
        from django.test import RequestFactory

        from semel.django import IdempotencyMiddleware as DjangoMiddleware

        effects: list[str] = []

        def counted(asked: Any) -> Any:
            effects.append("")
            return view(asked, len(effects))

        middleware, factory = DjangoMiddleware(counted), RequestFactory()

        def send(key: str, path: str = "/orders", **extra: Any) -> Any:
            headers = {"HTTP_IDEMPOTENCY_KEY": key, "HTTP_AUTHORIZATION": "Bearer x"}
            return middleware(factory.post(path, b"{}", "application/json", **headers, **extra))

        return send, effects

    def code(self, answer: Any) -> Any:
        return json.loads(answer.content)["code"]

    def test_the_end_of_the_process_leaves_doubt_and_an_error_does_not(self) -> None:
        from django.http import HttpResponse

        def view(_: Any, run: int) -> Any:
            if run == 1:
                raise RuntimeError("database unavailable")
            if run == 2:
                raise SystemExit(1)
            return HttpResponse(b"made", status=201)

        send, effects = self.guard(view)
        key = str(uuid.uuid4())
        with self.assertRaises(RuntimeError):
            send(key)
        with self.assertRaises(SystemExit):
            send(key)
        self.assertEqual(self.code(send(key)), "in_doubt")
        self.assertEqual(len(effects), 2)

    def test_only_a_stream_that_ended_took_effect(self) -> None:
        from django.http import StreamingHttpResponse

        def pieces(fails: bool) -> Any:
            yield b"1"
            if fails:
                raise RuntimeError("the source is gone")
            yield b"2"

        for fails, expected in ((True, "in_doubt"), (False, "outcome_not_kept")):
            send, effects = self.guard(lambda _, __: StreamingHttpResponse(pieces(fails)))
            key = str(uuid.uuid4())
            try:
                b"".join(send(key).streaming_content)
            except RuntimeError:
                pass
            self.assertEqual(self.code(send(key)), expected)
            self.assertEqual(len(effects), 1)

    def test_a_large_answer_is_not_kept_and_the_application_decides(self) -> None:
        from django.http import HttpResponse

        send, effects = self.guard(lambda _, __: HttpResponse(b"x" * (3 << 20)))
        key = str(uuid.uuid4())
        self.assertEqual(len(send(key).content), 3 << 20)
        self.assertEqual(self.code(send(key)), "outcome_not_kept")
        self.assertEqual(len(effects), 1)

        send, effects = self.guard(lambda _, __: HttpResponse(b"", headers={"Idempotency-Store": "no"}))
        key = str(uuid.uuid4())
        answer = send(key)
        self.assertEqual((answer.get("Idempotency-Store"), answer["Idempotency-Stored"]), (None, "false"))
        send(key)
        self.assertEqual(len(effects), 2)

    def test_the_path_is_that_of_the_client(self) -> None:
        from django.http import HttpResponse

        send, _ = self.guard(lambda _, __: HttpResponse(b"made", status=201))
        key = str(uuid.uuid4())
        self.assertEqual(send(key, "/items", SCRIPT_NAME="/orders").status_code, 201)
        self.assertEqual(self.code(send(key, "/items", SCRIPT_NAME="/refunds")), "conflict")

    # Services in several languages share their keys: they must read one path in one way.
    def test_the_path_counts_as_it_was_sent(self) -> None:
        from semel import asgi
        from semel import django as ours

        class Asked:
            META: dict[str, str] = {}
            path = "/orders/ä b%"

        sent = b"/orders/%C3%A4%20b%25"
        self.assertEqual(ours._raw_path(Asked()), sent)
        self.assertEqual(asgi._raw_path({"path": "/orders/ä b%"}), sent)
        self.assertEqual(asgi._raw_path({"path": "/orders/ä b%", "raw_path": sent}), sent)
        asked = Asked()
        asked.META = {"RAW_URI": "/orders/%c3%a4?a=b"}
        self.assertEqual(ours._raw_path(asked), b"/orders/%c3%a4")


class Rules(unittest.TestCase):
    # Services in two languages share their keys. clients/typescript/tests/faults.mjs has the same request and the same digest.
    def test_a_request_has_the_same_fingerprint_in_all_languages(self) -> None:
        headers = [
            (b"idempotency-key", b"k"),
            (b"host", b"shop.example"),
            (b"accept", b"*/*"),
            (b"accept", b"text/plain"),
            (b"x-other", b"1"),
            (b"cookie", b"a=\xe4"),
        ]
        asked = _gateway.guard("POST", b"/orders/%C3%A4%20b%25", b"x=1&y=%20", headers, b'{"amount":1}', "")
        self.assertEqual(asked.fingerprint, "a6c5d4c8effb740ae44ff74ba071540d41072c61fe363f38048ba14e0c95ed9f")

    def test_only_an_error_before_the_head_frees_the_key(self) -> None:
        for error in (asyncio.CancelledError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()):
            self.assertEqual(_gateway.after_failure(error, head_sent=False), "abandon")
        self.assertEqual(_gateway.after_failure(ValueError(), head_sent=False), "release")
        self.assertEqual(_gateway.after_failure(ValueError(), head_sent=True), "abandon")


if __name__ == "__main__":
    unittest.main()

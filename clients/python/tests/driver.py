"""The driver of the contract (clients/contract) over this package: threads, or with `--async` an event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from typing import Any

import semel

if skew := float(os.environ.get("CLOCK_JUMP", "0")):
    # A clock that jumps back and forth, at every look: nothing may depend on it.
    right, jumps = time.time, itertools.cycle((0.0, skew, -skew))
    time.time = lambda: right() + next(jumps)

STATUSES = {
    semel.ConflictError: "conflict",
    semel.InDoubtError: "in_doubt",
    semel.ExpiredError: "expired",
    semel.NotKeptError: "not_kept",
    semel.InFlightError: "in_flight",
    semel.UnavailableError: "unavailable",
    semel.RequestError: "refused",
    semel.NotStoredError: "not_stored",
    semel.LostError: "lost",
    asyncio.CancelledError: "cancelled",
}
clients: dict[float, semel.Client] = {}


class EffectError(Exception):
    pass


saying = threading.Lock()


def say(call: str, event: str, **more: Any) -> None:
    # print() writes the end of the line by itself: lines of two threads could mix.
    with saying:
        sys.stdout.write(json.dumps({"call": call, "event": event, **more}) + "\n")
        sys.stdout.flush()


class Call:
    """One call of the library."""

    def __init__(self, line: dict[str, Any], finished: Any) -> None:
        self.line = line
        self.finished = finished
        self.claim: dict[str, Any] | None = None
        retry_for = line.get("retry_for_ms", 10_000) / 1000
        self.client = clients.setdefault(retry_for, semel.Client(retry_for=retry_for))

    def decorator(self) -> Any:
        line = self.line
        times = {"wait": "wait_ms", "lease": "lease_ms", "retention": "retention_ms"}
        options = {name: line[member] / 1000 for name, member in times.items() if member in line}
        options |= {name: line[name] for name in ("mode", "provider", "durable") if name in line}
        payload = (lambda: line["payload"]) if "payload" in line else None
        return semel.once(
            key=lambda: line["key"],
            scope=line["scope"],
            namespace=line["namespace"],
            payload=payload,
            client=self.client,
            **options,
        )

    def started(self) -> None:
        claim = semel.current_claim()
        derived = claim.derived_key if "provider" in self.line else None
        self.claim = {"attempt": claim.attempt, "fence": claim.fence, "derived_key": derived}
        say(self.line["call"], "started")

    def result(self) -> Any:
        effect = self.line["effect"]
        if raised := effect.get("raises"):
            raise semel.NothingHappened() if raised == "nothing_happened" else EffectError()
        return "x" * effect["returns_bytes"] if "returns_bytes" in effect else effect["returns"]

    def ended(self, value: Any) -> None:
        say(self.line["call"], "ended", status="ran" if self.claim else "replayed", value=value, claim=self.claim)

    def failed(self, error: BaseException) -> None:
        status = STATUSES.get(type(error), "failed")
        more = {"retry_after_ms": error.retry_after * 1000} if isinstance(error, semel.InFlightError) else {}
        say(self.line["call"], "ended", status=status, claim=self.claim, **more)


def run_threads() -> None:
    calls: dict[str, Call] = {}

    def run(call: Call) -> None:
        @call.decorator()
        def effect() -> Any:
            call.started()
            if call.line["effect"].get("holds"):
                call.finished.wait()
            return call.result()

        try:
            call.ended(effect())
        except BaseException as error:
            call.failed(error)

    for line in map(json.loads, sys.stdin):
        if line["do"] == "call":
            call = calls[line["call"]] = Call(line, threading.Event())
            threading.Thread(target=run, args=(call,), daemon=True).start()
        elif line["do"] == "finish":
            calls[line["call"]].finished.set()


async def run_async() -> None:
    calls: dict[str, Call] = {}
    tasks: dict[str, asyncio.Task[None]] = {}
    loop = asyncio.get_running_loop()

    async def run(call: Call) -> None:
        @call.decorator()
        async def effect() -> Any:
            call.started()
            if call.line["effect"].get("holds"):
                await call.finished.wait()
            return call.result()

        try:
            call.ended(await effect())
        except BaseException as error:
            call.failed(error)

    while text := await loop.run_in_executor(None, sys.stdin.readline):
        line = json.loads(text)
        if line["do"] == "call":
            call = calls[line["call"]] = Call(line, asyncio.Event())
            tasks[line["call"]] = asyncio.create_task(run(call))
        elif line["do"] == "finish":
            calls[line["call"]].finished.set()
        elif line["do"] == "cancel":
            tasks[line["call"]].cancel()


if "--async" in sys.argv:
    asyncio.run(run_async())
else:
    run_threads()

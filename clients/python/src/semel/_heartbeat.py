"""One thread renews all claims of a client, in one call. Another one gives back claims that nobody wants any more."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ._steps import MOST_RENEWALS, Attempt, Call, Steps, Won, dumps, give_back
from ._wire import Answer

log = logging.getLogger("semel")

LONGEST_SLEEP = 5.0
GIVE_BACK_EVERY = 0.3


class Worker:
    """A thread that runs rounds of work. It starts with the first work, and ends when it is told to and has no more."""

    def __init__(self, name: str, run_round: Callable[[], float | None]) -> None:
        """`run_round` returns how long to sleep; `None` if nothing is left to do."""
        self._name = name
        self._round = run_round
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Starts the thread if it does not run."""
        with self._lock:
            self._stopping = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._wake.set()

    @property
    def runs(self) -> bool:
        return self._thread is not None and not self._stopping

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                pause = self._round()
            except Exception:
                # Whatever it is: claims that are not renewed are lost.
                log.exception("background work failed")
                pause = GIVE_BACK_EVERY
            with self._lock:
                if pause is None and self._stopping:
                    self._thread = None
                    return
            self._wake.wait(LONGEST_SLEEP if pause is None else min(max(pause, 0.01), LONGEST_SLEEP))
            self._wake.clear()


class Heartbeat:
    """Renews claims when a third of their lease has passed."""

    def __init__(self, send: Callable[[Call], Answer], drive: Callable[[Steps[bool]], bool]) -> None:
        self._send = send
        self._drive = drive
        self._claims: dict[str, Won] = {}
        self._unwanted: deque[tuple[Attempt, float]] = deque()
        self._renewer = Worker("semel-heartbeat", self._renew_due)
        # Not the same thread: one request that is stalled must not hold up the renewals.
        self._returner = Worker("semel-give-back", self._give_back_all)
        self._sleeps_until = 0.0
        self._failing_since: float | None = None

    def add(self, won: Won) -> None:
        self._claims[won.claim_id] = won
        if not self._renewer.runs:
            self._renewer.start()
        elif won.due < self._sleeps_until:
            self._renewer.wake()

    def remove(self, won: Won) -> None:
        self._claims.pop(won.claim_id, None)

    def give_back(self, attempt: Attempt) -> None:
        """Releases, in the background, a claim whose answer did not arrive."""
        until = max(attempt.waits_until, time.monotonic()) + attempt.terms.lease_seconds
        self._unwanted.append((attempt, until))
        self._returner.start()

    def close(self) -> None:
        """Ends the threads, as soon as no claim is held and none has to be given back."""
        self._renewer.stop()
        self._returner.stop()

    def _renew_due(self) -> float | None:
        now = time.monotonic()
        due = [won for won in list(self._claims.values()) if won.due <= now]
        for start in range(0, len(due), MOST_RENEWALS):
            self._renew(due[start : start + MOST_RENEWALS])
        # Before the look at the claims: one that is added meanwhile wakes the thread.
        self._sleeps_until = time.monotonic() + LONGEST_SLEEP
        claims = list(self._claims.values())
        for won in claims:
            self._sleeps_until = min(self._sleeps_until, won.due)
        return self._sleeps_until - time.monotonic() if claims else None

    def _renew(self, claims: list[Won]) -> None:
        now = time.monotonic()
        # Before anything can fail: asked again soon.
        for won in claims:
            won.due = now + won.terms.lease_seconds / 12
        body = f'{{"claim_ids":{dumps([won.claim_id for won in claims])}}}'.encode()
        # Short: a server that does not answer now can be asked again before the lease ends.
        seconds = max(0.1, min(won.terms.lease_seconds for won in claims) / 4)
        try:
            answer = self._send(Call("/v1/claims/renew", body, seconds))
            results: list[dict[str, Any]] = json.loads(answer.body)["results"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if self._failing_since is None:
                self._failing_since = now
                log.warning("heartbeat failed: error=%s", error)
            return
        if self._failing_since is not None:
            log.warning("heartbeat works again: seconds=%.1f", time.monotonic() - self._failing_since)
            self._failing_since = None
        for won, result in zip(claims, results):
            problem = result.get("problem")
            if problem is None:
                won.due = now + won.terms.lease_seconds / 3
            elif not problem.get("retryable"):
                won.lost = True
                self.remove(won)

    def _give_back_all(self) -> float | None:
        for _ in range(len(self._unwanted)):
            attempt, until = self._unwanted.popleft()
            try:
                until = until if not self._drive(give_back(attempt)) else 0.0
                until = min(until, attempt.waits_until + GIVE_BACK_EVERY)
            except Exception as error:
                if time.monotonic() >= until:
                    log.warning("claim not given back: error=%s", error)
            if time.monotonic() < until:
                self._unwanted.append((attempt, until))
        return GIVE_BACK_EVERY if self._unwanted else None

"""The claims API as steps without I/O: blocking callers and asyncio run the same ones.

A generator yields what to send or how long to pause, and gets the answer. Every request can be repeated: the server
recognises the owner or the claim. So a lost answer is asked for again.
"""

from __future__ import annotations

import functools
import json
import os
import random
import time
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar, Union

from ._codec import as_bytes
from ._terms import Terms
from ._wire import Answer
from .errors import (
    ConflictError,
    ExpiredError,
    InDoubtError,
    InFlightError,
    NotKeptError,
    RequestError,
    SemelError,
    UnavailableError,
)

T = TypeVar("T")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
ANSWER_WITHIN = 10.0
"""Seconds until a connection without an answer is given up."""
LONGEST_ASK = 20.0
"""The server waits no longer than this for one request; the client then asks again."""
LEAST_SLACK = 1.0
"""Seconds that an answer may take at least, however short the lease is."""
MOST_RENEWALS = 1000

dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Call(NamedTuple):
    """Send this, and give the answer back; raise `OSError` if there is none."""

    path: str
    body: bytes
    seconds: float = ANSWER_WITHIN


class Pause(NamedTuple):
    """Sleep."""

    seconds: float


Steps = Generator[Union[Call, Pause], Any, T]


class Lost(Exception):
    """The claim belongs to another owner. `document` may hold the outcome that stands."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("detail")))
        self.document = document


class Won:
    """A won claim: the effect may run."""

    __slots__ = ("attempt", "claim_id", "derived_key", "due", "epoch", "fence", "key_id", "lost", "max_outcome", "terms")

    def __init__(self, document: dict[str, Any], terms: Terms) -> None:
        self.terms = terms
        self.claim_id: str = document["claim_id"]
        self.key_id: str = document["key_id"]
        self.fence: int = document["fence"]
        """Grows with every claim of the key: a receiver can refuse a smaller one."""
        self.attempt: int = document["attempt"]
        """1 for the first attempt."""
        self.epoch: int = document["epoch"]
        self.derived_key: str | None = document.get("derived_key")
        """The key to send to `provider`: the same at every attempt."""
        self.lost = False
        """True once a heartbeat learnt that another worker has the claim. Stop, if you can."""
        self.max_outcome: int | None = document.get("max_outcome")
        """The largest outcome that is kept, in bytes of JSON."""
        # A claim that is won again, after its answer was lost, has used a part of its lease.
        left = seconds_of(document["lease_left"]) if "lease_left" in document else terms.lease_seconds
        self.due = time.monotonic() + max(0.0, left - terms.lease_seconds * 2 / 3)
        """When the heartbeat renews it: when a third of the lease has passed."""


class Outcome(NamedTuple):
    """The stored outcome of an effect."""

    value: Any


class Attempt:
    """One attempt to claim a key."""

    __slots__ = ("_rest", "body", "terms", "unheard", "waits_until")

    def __init__(self, terms: Terms, key: str, scope: list[str], payload: str | None, fingerprint: str | None) -> None:
        self.terms = terms
        rest = f'{terms.members}"key":{dumps(key)}'
        if scope:
            rest += f',"scope":{dumps(scope)}'
        if payload is not None:
            rest += f',"payload":{payload}'
        if fingerprint is not None:
            rest += f',"fingerprint":{dumps(fingerprint)}'
        self._rest = rest
        self.unheard = False
        """True while a claim may have been won without our knowledge."""
        self.waits_until = 0.0
        """When the server stops waiting for the last request, whether its client is there or not."""
        self.body = ""
        self.new_owner()

    def new_owner(self) -> None:
        """Names the next request, so that the server recognises its repetitions."""
        self.body = f'{{{self._rest},"owner":"{os.urandom(16).hex()}"'

    def request(self, wait: float) -> bytes:
        ask = f',"wait":"{int(wait * 1000)}ms"}}' if wait > 0 else "}"
        return as_bytes(self.body + ask)


def post(path: str, body: bytes, retry_for: float, seconds: float = ANSWER_WITHIN) -> Steps[dict[str, Any]]:
    """Sends a request until it has an answer."""
    give_up = 0.0
    pause = FIRST_PAUSE
    while True:
        problem: SemelError
        cause: BaseException | None = None
        at_least = 0.0
        try:
            answer: Answer = yield Call(path, body, seconds)
        except OSError as error:
            problem, cause = UnavailableError(f"the Semel server gave no answer: {error}"), error
        else:
            status = answer.status
            document = _document(answer)
            if 200 <= status < 300 and document is not None:
                return document
            document = _problem(status, document)
            code = str(document.get("code"))
            if code == "lost":
                raise Lost(document)
            detail = str(document.get("detail"))
            if not document.get("retryable"):
                raise RequestError(status, code, detail)
            problem = UnavailableError(f"{detail} ({status}, {code})")
            if status == 429:
                at_least = answer.retry_after or 0.0
        now = time.monotonic()
        give_up = give_up or now + retry_for
        wait = max(pause * random.uniform(0.75, 1.25), at_least)
        if now + wait >= give_up:
            raise problem from cause
        yield Pause(wait)
        pause = min(pause * 2, LONGEST_PAUSE)


def _document(answer: Answer) -> dict[str, Any] | None:
    """The object that an answer holds. `None`: it comes from something between us and the server."""
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _problem(status: int, document: dict[str, Any] | None) -> dict[str, Any]:
    if document is not None and "code" in document:
        return document
    # Not ours. Whatever answers 200 in the place of the server may be gone at the next request.
    retryable = status in (502, 503, 504) or 200 <= status < 300
    return {"code": "unknown", "detail": "the answer is not that of a Semel server", "retryable": retryable}


def claim(attempt: Attempt) -> Steps[Won | Outcome]:
    """Claims the key, waits while another caller holds it, and raises what is neither won nor an outcome."""
    terms = attempt.terms
    deadline = time.monotonic() + terms.wait_seconds
    # The lease runs from the moment at which the server grants it. So one request takes half of it at most: if its answer is lost,
    # the claim is asked for again while it is still held.
    longest_ask = min(LONGEST_ASK, terms.lease_seconds / 3)
    slack = min(ANSWER_WITHIN, max(LEAST_SLACK, terms.lease_seconds / 6))
    while True:
        asked_at = time.monotonic()
        ask = max(0.0, min(deadline - asked_at, longest_ask))
        request = attempt.request(ask)
        attempt.unheard = True
        attempt.waits_until = asked_at + ask
        try:
            document = yield from post("/v1/claims", request, terms.retry_for, slack + ask)
        except Lost:
            # A request of this owner came after its end, for example because it was given back.
            attempt.new_owner()
            continue
        except RequestError:
            attempt.unheard = False
            raise
        attempt.unheard = False
        status = document["status"]
        if status == "won":
            return Won(document, terms)
        if status == "replay":
            return outcome(document)
        if status == "conflict":
            raise ConflictError("the key was used with another payload")
        if status == "in_doubt":
            key_id = document["key_id"]
            raise InDoubtError(f"the effect may have happened: settle the key {key_id} (semel keys settle)", key_id)
        if status == "expired":
            raise ExpiredError("the effect happened, and its outcome has expired")
        left = deadline - time.monotonic()
        if left <= 0:
            after = seconds_of(document.get("retry_after", "1s"))
            raise InFlightError("another caller holds the key", after)
        if time.monotonic() < asked_at + ask / 2:
            # The server has no room for another waiter.
            yield Pause(min(left, random.uniform(0.05, 0.2)))


def outcome(document: dict[str, Any]) -> Outcome:
    """The outcome that an answer holds."""
    if "not_kept" in document:
        raise NotKeptError(f"the effect happened, and its outcome was not kept: {document['not_kept']}")
    return Outcome(document["outcome"])


def give_back(attempt: Attempt) -> Steps[bool]:
    """Releases a claim that may have been won without our knowledge. Sends each request once.

    False: another caller holds the key, and a request of ours may still wait for it behind a proxy.
    """
    try:
        document = yield from post("/v1/claims", attempt.request(0), 0)
        if document["status"] == "won":
            yield from post(f"/v1/claims/{document['claim_id']}/release", b"", 0)
        return bool(document["status"] != "busy")
    except (Lost, RequestError):
        return True


def complete(
    won: Won, text: str | None, retention: str | None = None, not_kept: str = "", retry_for: float | None = None
) -> Steps[Outcome | None]:
    """Stores the outcome. Returns the outcome that stands if it is another worker's.

    An outcome that is too large, that something in between refuses, or that has no text is not kept: the record says so, and the
    effect does not run again.
    """
    if retry_for is None:
        retry_for = max(won.terms.retry_for, won.terms.lease_seconds)
    body = b"" if text is None else as_bytes(text)
    if text is not None and won.max_outcome is not None and len(body) > won.max_outcome:
        text, not_kept = None, f"{len(body)} bytes are more than the {won.max_outcome} that are kept"
    refusal: RequestError | None = None
    try:
        if text is not None:
            try:
                yield from _complete(won, b'"outcome":' + body, retention, retry_for)
                return None
            except RequestError as error:
                refusal = error
                # A proxy in between may read less than the server, or refuse what it reads.
                not_kept = f"{len(body)} bytes were refused with {error.status}"
                if error.status == 413:
                    not_kept = f"{len(body)} bytes are more than one request may have"
        try:
            yield from _complete(won, b'"not_kept":' + as_bytes(dumps(not_kept)), retention, retry_for)
        except RequestError as error:
            raise refusal or error from None
    except Lost as lost:
        if "outcome" not in lost.document and "not_kept" not in lost.document:
            raise
        return outcome(lost.document)
    return None


def _complete(won: Won, member: bytes, retention: str | None, retry_for: float) -> Steps[dict[str, Any]]:
    more = f',"retention":"{retention}"' if retention else ""
    path = f"/v1/claims/{won.claim_id}/complete{'' if won.terms.durable else '?wait=false'}"
    body = b"{%s%s}" % (member, more.encode())
    return (yield from post(path, body, retry_for))


def step(won: Won, name: str) -> Steps[None]:
    """Begin, release or abandon."""
    yield from post(f"/v1/claims/{won.claim_id}/{name}", b"", won.terms.retry_for)


@functools.lru_cache(maxsize=64)  # a fresh lease always has the same text
def seconds_of(text: str) -> float:
    """The seconds of a duration as the server writes it."""
    total, number = 0.0, ""
    unit = ""
    factors = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
    for char in text + "0":
        if char.isdigit() or char == ".":
            if unit:
                total += float(number) * factors.get(unit, 1.0)
                number, unit = "", ""
            number += char
        elif not char.isspace():
            unit += char
    return total

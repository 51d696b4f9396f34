"""The terms of a claim."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Literal, Union

Mode = Literal["marked", "keyed", "rerun"]
Duration = Union[float, timedelta]
"""Seconds, or a `timedelta`."""


def seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


class Terms:
    """What one operation asks for in all its claims."""

    __slots__ = ("begin", "durable", "lease_seconds", "members", "retry_for", "wait_seconds")

    def __init__(
        self,
        namespace: str,
        *,
        mode: Mode,
        wait: Duration,
        lease: Duration,
        in_flight_max: Duration | None,
        retention: Duration | None,
        provider: str | None,
        begin: Literal["with_claim", "later"],
        durable: bool,
        retry_for: Duration,
    ) -> None:
        self.lease_seconds = seconds(lease)
        self.wait_seconds = seconds(wait)
        self.retry_for = seconds(retry_for)
        self.begin = begin
        self.durable = durable
        members: dict[str, object] = {"namespace": namespace, "mode": mode, "lease": _text(lease)}
        if in_flight_max is not None:
            members["in_flight_max"] = _text(in_flight_max)
        if retention is not None:
            members["retention"] = _text(retention)
        if provider is not None:
            members["provider"] = provider
        if begin == "with_claim":
            members["begin"] = True
        # Written once: it is the same in every claim of the operation.
        self.members = json.dumps(members, separators=(",", ":"))[1:-1] + ","


def _text(duration: Duration) -> str:
    return f"{round(seconds(duration) * 1000)}ms"

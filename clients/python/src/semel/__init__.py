"""Run a function once: one decorator over the claims API of a Semel server."""

from ._client import Client, Scope, configure, default_client
from ._once import Claim, current_claim, once
from ._steps import Outcome, Won
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
    RequestError,
    SemelError,
    UnavailableError,
)

__all__ = [
    "Claim",
    "Client",
    "ConflictError",
    "Duration",
    "ExpiredError",
    "InDoubtError",
    "InFlightError",
    "LostError",
    "Mode",
    "NotKeptError",
    "NotStoredError",
    "NothingHappened",
    "Outcome",
    "RequestError",
    "Scope",
    "SemelError",
    "Terms",
    "UnavailableError",
    "Won",
    "configure",
    "current_claim",
    "default_client",
    "once",
]

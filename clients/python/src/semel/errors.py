"""What can go wrong, each with a name of its own."""

from __future__ import annotations

from typing import Any


class SemelError(Exception):
    """Base of all errors of this package."""


class ConflictError(SemelError):
    """The key was used with another payload."""


class InFlightError(SemelError):
    """Another caller holds the key, and the wait is over."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which a retry makes sense."""


class InDoubtError(SemelError):
    """The effect may have happened: its worker was lost. It does not run again until the key is settled."""

    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id
        """For `semel keys settle`."""


class ExpiredError(SemelError):
    """The effect happened, and its retention is over."""


class NotKeptError(SemelError):
    """The effect happened, and its outcome was not kept: it was too large, or a stream."""


class LostError(SemelError):
    """The claim belongs to another worker now, and no outcome stands yet."""


class NotStoredError(SemelError):
    """The effect happened, and its outcome could not be stored."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result
        """What the function returned."""


class RequestError(SemelError):
    """The server refused the request: a wrong token, a wrong setting."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{detail} ({status}, {code})")
        self.status = status
        self.code = code


class UnavailableError(SemelError):
    """The server or its store gave no answer in time.

    A call of a function that is run once raises it before the function starts; afterwards it raises `NotStoredError`.
    """


class NothingHappened(Exception):
    """Raise it in a function that is run once if its effect did not happen: the key is free again."""

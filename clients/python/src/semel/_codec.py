"""Results as JSON and back. All callers get the same value: the first one, too, gets what JSON made of it."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import typing
import uuid
from collections.abc import Callable
from typing import Any


def to_json(value: object) -> Any:
    """Objects that JSON has no form for: dataclasses, pydantic models, times, UUIDs, decimals, enums, sets."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} has no form in JSON: give `payload`, `encode` and `decode` to once()")


_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=to_json)
encode_json = _encoder.encode


def identity(value: Any) -> Any:
    return value


def decoder(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """How a stored result becomes a value of the function's return type: for dataclasses and pydantic models."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except Exception:  # an annotation that cannot be resolved here
        return identity
    if not isinstance(returned, type):
        return identity
    validate = getattr(returned, "model_validate", None)
    if callable(validate):
        return typing.cast(Callable[[Any], Any], validate)
    if dataclasses.is_dataclass(returned):
        return lambda members: returned(**members)
    return identity

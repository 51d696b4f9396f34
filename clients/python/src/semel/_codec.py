"""Results as JSON and back. All callers get the same value: the first one, too, gets what JSON made of it."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import types
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


def encode_json(value: object) -> str:
    """The JSON text of a value. It can always be written as UTF-8."""
    text = _encoder.encode(value)
    return text if text.isascii() else as_bytes(text).decode()


def as_bytes(text: str) -> bytes:
    """JSON text as UTF-8. A surrogate without its other half has no form in UTF-8; JSON has one: `\\ud800`."""
    return text.encode("utf-8", "backslashreplace")


def identity(value: Any) -> Any:
    return value


def decoder(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """How a stored result becomes a value of the function's return annotation."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except Exception:  # an annotation that cannot be resolved here
        return identity
    convert = _converter(returned)
    if convert is None:
        return identity

    def decode(value: Any) -> Any:
        try:
            return convert(value)
        except _Unfit as unfit:
            told = f"the stored result does not fit the annotation -> {returned}: {unfit}"
            raise TypeError(f"{told}; correct it, or give `decode` to once()") from None

    return decode


class _Unfit(Exception):
    """A value is not what its annotation says."""


Convert = Callable[[Any], Any]

_FROM_TEXT: dict[Any, Convert] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: decimal.Decimal,
}
_LISTS: dict[Any, Callable[[Any], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
}
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_PLAIN = (str, int, float, bool, list, dict)


def _converter(annotation: Any) -> Convert | None:
    """Makes a value of this type from its form in JSON. `None` if that form is the value."""
    annotation = getattr(annotation, "__supertype__", annotation)  # NewType
    origin, inner = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union(inner)
    if origin is tuple:
        return _tuple(inner)
    if origin in _LISTS:
        return _list(_LISTS[origin], inner)
    if origin in _DICTS:
        return _dict(inner)
    if not isinstance(origin, type):
        return None
    validate = getattr(origin, "model_validate", None)
    if callable(validate):
        return typing.cast(Convert, validate)
    if origin in _FROM_TEXT:
        return functools.partial(_from_text, _FROM_TEXT[origin])
    if dataclasses.is_dataclass(origin) or hasattr(origin, "_fields") and issubclass(origin, tuple):
        return functools.partial(_from_members, origin)
    if issubclass(origin, enum.Enum):
        return functools.partial(_member, origin)
    return None


def _from_text(read: Convert, value: Any) -> Any:
    if not isinstance(value, str):
        raise _Unfit(f"expected a text, found {type(value).__name__}")
    try:
        return read(value)
    except (ValueError, ArithmeticError) as error:
        raise _Unfit(str(error)) from None


def _member(cls: type[enum.Enum], value: Any) -> Any:
    for member in cls:
        if json.loads(encode_json(member)) == value:
            return member
    raise _Unfit(f"no member of {cls.__name__}")


@functools.lru_cache(maxsize=None)
def _hints(cls: type) -> dict[str, Convert | None]:
    """The converter of each field. Made when a value comes, because a class may name itself."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # an annotation that cannot be resolved here
        hints = {}
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields  # type: ignore[attr-defined]
    return {name: _converter(hints.get(name)) for name in names}


def _from_members(cls: type, value: Any) -> Any:
    """A dataclass from an object, a named tuple from a list."""
    hints = _hints(cls)
    is_tuple = issubclass(cls, tuple)
    if not isinstance(value, list if is_tuple else dict):
        raise _Unfit(f"expected {cls.__name__}, found {type(value).__name__}")
    members: dict[str, Any] = dict(zip(hints, value)) if is_tuple else dict(value)
    if unknown := [name for name in members if name not in hints]:
        raise _Unfit(f"{cls.__name__} has no field {unknown[0]!r}")
    members = {name: _apply(hints[name], member) for name, member in members.items()}
    later = {field.name for field in dataclasses.fields(cls) if not field.init} if dataclasses.is_dataclass(cls) else set()
    try:
        made = cls(**{name: member for name, member in members.items() if name not in later})
    except TypeError as error:
        raise _Unfit(str(error)) from None
    for name in later:
        if name in members:
            object.__setattr__(made, name, members[name])
    return made


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if convert is None else convert(value)


def _list(make: Callable[[Any], Any], inner: tuple[Any, ...]) -> Convert | None:
    convert = _converter(inner[0]) if inner else None
    if convert is None and make is list:
        return None

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Unfit(f"expected a list, found {type(value).__name__}")
        return make(_apply(convert, one) for one in value)

    return read


def _tuple(inner: tuple[Any, ...]) -> Convert:
    repeats = len(inner) == 2 and inner[1] is ...
    converters = [_converter(one) for one in (inner[:1] if repeats else inner)]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or not (repeats or not inner or len(value) == len(inner)):
            raise _Unfit("expected a list of the length of the tuple")
        each = converters * len(value) if repeats else converters or [None] * len(value)
        return tuple(_apply(convert, one) for convert, one in zip(each, value))

    return read


def _dict(inner: tuple[Any, ...]) -> Convert | None:
    convert = _converter(inner[1]) if len(inner) == 2 else None
    # JSON makes texts of numbers that are keys.
    number = inner[0] if inner and inner[0] in (int, float) else None
    if convert is None and number is None:
        return None

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unfit(f"expected an object, found {type(value).__name__}")
        try:
            return {name if number is None else number(name): _apply(convert, one) for name, one in value.items()}
        except ValueError as error:
            raise _Unfit(str(error)) from None

    return read


def _union(inner: tuple[Any, ...]) -> Convert | None:
    choices = [(one, _converter(one)) for one in inner]
    if all(convert is None for _, convert in choices):
        return None

    def read(value: Any) -> Any:
        for one, convert in choices:
            plain = typing.get_origin(one) or one
            if convert is None:
                if plain in _PLAIN and not isinstance(value, plain) or plain is type(None) and value is not None:
                    continue
                return value
            try:
                return convert(value)
            except Exception:  # an _Unfit, or what a model raises
                continue
        raise _Unfit(f"{type(value).__name__} is none of the types")

    return read

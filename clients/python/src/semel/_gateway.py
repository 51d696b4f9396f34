"""What the middlewares share: the rules of the gateway's `ietf` profile, without I/O."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ._steps import dumps
from .errors import (
    ConflictError,
    ExpiredError,
    InDoubtError,
    InFlightError,
    NotKeptError,
    SemelError,
)

Header = tuple[bytes, bytes]
METHODS = ("POST", "PATCH")
WELL_KNOWN = "/.well-known/idempotency"
MAX_BODY = 1 << 20
WAIT = 5.0
RETENTION = 24 * 3600
STREAMED = "it was streamed"
PATH_SAFE = "/~:@!$&'()*+,;=-._"
_LONGEST_RETENTION = 3650 * 24 * 3600

# Headers that can change an answer: a retry must repeat them.
_COMPARED = frozenset(
    name.encode()
    for name in (
        "accept accept-charset accept-language content-encoding content-type host prefer x-forwarded-host "
        "x-forwarded-port x-forwarded-prefix x-forwarded-proto x-http-method-override x-original-url x-rewrite-url "
        "x-http-method x-method-override cookie api-key x-account x-account-id x-api-key x-auth-token x-customer-id "
        "x-org-id x-organization-id x-tenant x-tenant-id x-user x-user-id stripe-account stripe-context"
    ).split()
)
# Headers that belong to the connection, to one moment or to one client.
_NEVER_KEPT = frozenset(
    name.encode()
    for name in (
        "connection date set-cookie set-cookie2 authorization www-authenticate proxy-authenticate proxy-authorization te "
        "trailer transfer-encoding upgrade keep-alive proxy-connection proxy-authentication-info authentication-info "
        "idempotent-replayed idempotency-stored idempotency-store idempotency-retention server"
    ).split()
)
_NOT_DETERMINISTIC = frozenset((401, 403, 408, 409, 421, 423, 425, 426, 428, 429))

_PROBLEMS = {
    "key_missing": (
        400,
        "An idempotency key is required",
        "send a new Idempotency-Key with every new operation, and the same one with its retries",
    ),
    "key_malformed": (
        400,
        "The idempotency key is malformed",
        "a key is 1 to 255 visible ASCII characters, sent once, bare or as a quoted string",
    ),
    "scope_missing": (
        400,
        "The request does not say who asks",
        "the header that identifies the caller is missing",
    ),
    "body_too_large": (413, "The body is too large", "send a smaller body, or no idempotency key"),
    "conflict": (
        422,
        "The idempotency key was used with another request",
        "a retry must repeat method, path, query, headers and body; use a new key for a new operation",
    ),
    "in_flight": (
        409,
        "Another request with this idempotency key is in flight",
        "wait, then send the same request with the same key again",
    ),
    "expired": (
        410,
        "The idempotency key has expired",
        "this key was used before and its answer is no longer kept; use a new key for a new operation",
    ),
    "in_doubt": (
        409,
        "Nobody knows whether an earlier request took effect",
        "it is not run again; a probe or an operator must find out whether it took effect and settle the key",
    ),
    "outcome_not_kept": (
        409,
        "The request took effect and its answer was not kept",
        "it is not run again; look up its result by other means",
    ),
    "store_unavailable": (
        503,
        "The idempotency store is unavailable",
        "nothing happened; send the same request with the same key again",
    ),
}
_RETRYABLE = ("in_flight", "store_unavailable")


class Response(NamedTuple):
    """An answer to a client."""

    status: int
    headers: list[Header]
    body: bytes


class Refused(Exception):
    """The request cannot be guarded."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Guarded(NamedTuple):
    """A request with a key, as it is claimed."""

    key: str
    scope: str
    fingerprint: str


def is_guarded(method: str, headers: Sequence[Header], required: bool) -> bool:
    """Whether the request has a key that counts."""
    if method not in METHODS:
        return False
    return required or any(name == b"idempotency-key" for name, _ in headers)


def guard(
    method: str, path: bytes, query: bytes, headers: Sequence[Header], body: bytes, principal: str | None
) -> Guarded:
    """Key, scope and fingerprint of a request. `principal` identifies the caller, if the application knows it."""
    lines = [value for name, value in headers if name == b"idempotency-key"]
    if not lines:
        raise Refused("key_missing")
    if len(lines) > 1:
        raise Refused("key_malformed")
    key = _read_key(lines[0])
    if principal is None:
        credentials = [value for name, value in headers if name == b"authorization"]
        if len(credentials) != 1:
            raise Refused("scope_missing")
        principal = hashlib.sha256(credentials[0]).hexdigest()
    parts = [method.encode(), path, b"?" + query if query else b""]
    for name, value in sorted(line for line in headers if line[0] in _COMPARED):
        parts += (name, value)
    return Guarded(key, principal, _hash([*parts, body]))


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # With its length: no byte can move from one part to the next.
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _read_key(value: bytes) -> str:
    value = value.strip()
    if value.startswith(b'"'):
        value = _unquote(value[1:])
    elif b"," in value or b'"' in value:
        raise Refused("key_malformed")
    if not 1 <= len(value) <= 255 or any(not 0x21 <= byte <= 0x7E for byte in value):
        raise Refused("key_malformed")
    return value.decode("ascii")


def _unquote(quoted: bytes) -> bytes:
    key = bytearray()
    rest = iter(quoted)
    for byte in rest:
        if byte == 0x22:
            if next(rest, None) is not None:
                break
            return bytes(key)
        if byte == 0x5C:
            escaped = next(rest, None)
            if escaped not in (0x22, 0x5C):
                break
            byte = escaped
        key.append(byte)
    raise Refused("key_malformed")


class Steering(NamedTuple):
    """What the application says about its answer, in headers that no client sees."""

    discard: bool
    """`Idempotency-Store: no`."""
    retention: float | None
    """`Idempotency-Retention`, in seconds."""


def take_steering(headers: list[Header]) -> Steering:
    """Reads the application's instructions and removes them."""
    discard, retention = False, None
    for name, value in headers:
        if name == b"idempotency-store":
            discard = value.strip().lower() in (b"no", b"false")
        elif name == b"idempotency-retention" and value.strip().isdigit():
            retention = float(min(int(value), _LONGEST_RETENTION))
    headers[:] = [line for line in headers if line[0] not in (b"idempotency-store", b"idempotency-retention")]
    return Steering(discard, retention)


def after_failure(error: BaseException, head_sent: bool) -> Literal["release", "abandon"]:
    """How the claim of a request ends whose application failed.

    An error before the head of an answer is answered with 500, which frees the key as at the gateway. After the head, and where
    the application did not fail but was stopped (cancelled, the process ends), nobody knows how far it came.
    """
    return "release" if isinstance(error, Exception) and not head_sent else "abandon"


Verdict = Literal["keep", "release", "abandon"]


def verdict(status: int, steering: Steering = Steering(False, None)) -> Verdict:
    """What an answer means for the record."""
    if steering.discard:
        return "release"
    if status in (502, 504):
        return "abandon"
    if status >= 500 or status in _NOT_DETERMINISTIC or status < 200:
        return "release"
    return "keep"


def to_stored(response: Response) -> str:
    """The answer as an outcome."""
    headers = [
        [name.decode("latin-1"), value.decode("latin-1")]
        for name, value in response.headers
        if name not in _NEVER_KEPT and not name.startswith((b"ratelimit", b"x-ratelimit", b"x-rate-limit"))
    ]
    document: dict[str, Any] = {"status": response.status, "headers": headers}
    try:
        document["body"] = response.body.decode("utf-8")
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(response.body).decode("ascii")
    return dumps(document)


def from_stored(document: dict[str, Any]) -> Response:
    """The answer from the record."""
    if "status" not in document:
        raise NotKeptError("the answer was not kept")
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in document["headers"]]
    text = document.get("body")
    body = base64.b64decode(document["body_base64"]) if text is None else text.encode("utf-8")
    return Response(document["status"], [*headers, (b"idempotent-replayed", b"true")], body)


def problem(code: str, retry_after: float | None = None) -> Response:
    """A refusal, as a problem document (RFC 9457)."""
    status, title, detail = _PROBLEMS[code]
    retryable = code in _RETRYABLE
    document = {
        "type": f"urn:semel:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "message": detail,
        "code": code,
        "retryable": retryable,
    }
    body = json.dumps(document, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if retryable:
        headers.append((b"retry-after", str(max(1, round((retry_after or 1) + 0.499))).encode()))
    else:
        headers.append((b"x-should-retry", b"false"))
    headers.append((b"link", f'<{WELL_KNOWN}>; rel="describedby"'.encode()))
    return Response(status, headers, body)


def refusal(error: SemelError) -> Response:
    """The answer to a request that was not run."""
    if isinstance(error, ConflictError):
        return problem("conflict")
    if isinstance(error, InFlightError):
        return problem("in_flight", error.retry_after)
    if isinstance(error, InDoubtError):
        return problem("in_doubt")
    if isinstance(error, ExpiredError):
        return problem("expired")
    if isinstance(error, NotKeptError):
        return problem("outcome_not_kept")
    return problem("store_unavailable")


def policy(required: bool) -> Response:
    """The published policy."""
    document = {
        "supported": True,
        "methods": METHODS,
        "key": {"header": "idempotency-key", "format": "visible-ascii", "min_length": 1, "max_length": 255},
        "required": required,
        "replay_ttl_seconds": RETENTION,
        "in_flight": "wait",
        "version": 1,
        "profile": "ietf",
    }
    body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return Response(200, headers, body)

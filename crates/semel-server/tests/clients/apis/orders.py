"""An orders API on FastAPI, made idempotent by a published package as its README shows, with its store in memory.

    orders.py PACKAGE      one of the names in `middleware`

Prints its URL once it listens, and ends when its standard input does. `GET /effects` tells how often each request took effect: the witness of a race.
"""

import asyncio
import os
import socket
import sys
import threading
from collections import Counter

import uvicorn
from fastapi import FastAPI, Request
from fastapi.middleware import Middleware
from fastapi.responses import JSONResponse

EFFECT_SECONDS = 0.03


def middleware(package):
    if package == "fastapi-idempotency":
        from fastapi_idempotency import IdempotencyMiddleware

        return Middleware(IdempotencyMiddleware)
    if package == "fastapi-idempotency, by caller":
        from fastapi_idempotency import IdempotencyMiddleware

        return Middleware(IdempotencyMiddleware, scope=caller)
    if package == "asgi-idempotency-header":
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends import MemoryBackend

        return Middleware(IdempotencyHeaderMiddleware, backend=MemoryBackend())
    if package == "fastapi-idempotency-key":
        from fastapi_idempotency_key import IdempotencyMiddleware, MemoryBackend

        backend = MemoryBackend()
        return Middleware(
            IdempotencyMiddleware, backend=backend, header_name="Idempotency-Key", default_ttl=86400
        )
    if package == "none":
        return None
    sys.exit(f"unknown package: {package}")


def caller(request):
    return request.headers.get("authorization", "")


package = middleware(sys.argv[1])
app = FastAPI(middleware=[package] if package else [])
effects = Counter()
failed = set()


async def create(kind, request):
    order = await request.json()
    if order.get("amount", 0) < 0:
        return JSONResponse({"detail": "amount must not be negative"}, status_code=422)
    await asyncio.sleep(EFFECT_SECONDS)
    effects[f"{caller(request)} {request.url.path} {request.headers.get('idempotency-key')}"] += 1
    made = f"{kind}_{effects.total():06}"
    return JSONResponse(
        {"id": made, "amount": order["amount"]}, status_code=201, headers={"Location": f"/{kind}s/{made}"}
    )


@app.post("/orders")
async def create_order(request: Request):
    return await create("order", request)


@app.post("/refunds")
async def create_refund(request: Request):
    return await create("refund", request)


@app.post("/fails-once")
async def fail_once(request: Request):
    key = request.headers["idempotency-key"]
    if key not in failed:
        failed.add(key)
        return JSONResponse({"detail": "database unavailable"}, status_code=500)
    return await create("order", request)


@app.get("/effects")
async def count_effects():
    return effects


def end_with_input():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end_with_input, daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])

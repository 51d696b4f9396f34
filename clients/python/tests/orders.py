"""The orders API that `semel check` judges, with this package's middleware.

    orders.py asgi|django

Prints its URL once it listens, and ends when its standard input does. `GET /effects` tells how often each request took effect.
"""

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any

EFFECT_SECONDS = 0.03
effects: Counter[str] = Counter()
failed: set[str] = set()
lock = threading.Lock()


def create(kind: str, headers: Any, path: str, order: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
    with lock:
        effects[f"{headers.get('authorization')} {path} {headers.get('idempotency-key')}"] += 1
        made = f"{kind}_{effects.total():06}"
    return 201, {"id": made, "amount": order["amount"]}, {"Location": f"/{kind}s/{made}"}


def fails_now(headers: Any) -> bool:
    with lock:
        is_first = headers["idempotency-key"] not in failed
        failed.add(headers["idempotency-key"])
    return is_first


def serve_asgi(listener: socket.socket) -> None:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

    from semel.asgi import IdempotencyMiddleware

    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware)

    async def answer(kind: str, request: Request) -> JSONResponse:
        order = await request.json()
        if order.get("amount", 0) < 0:
            return JSONResponse({"detail": "amount must not be negative"}, status_code=422)
        await asyncio.sleep(EFFECT_SECONDS)
        status, body, headers = create(kind, request.headers, request.url.path, order)
        return JSONResponse(body, status_code=status, headers=headers)

    @app.post("/orders")
    async def orders(request: Request) -> JSONResponse:
        return await answer("order", request)

    @app.post("/refunds")
    async def refunds(request: Request) -> JSONResponse:
        return await answer("refund", request)

    @app.post("/fails-once")
    async def fails_once(request: Request) -> JSONResponse:
        if fails_now(request.headers):
            raise RuntimeError("database unavailable")
        return await answer("order", request)

    @app.get("/effects")
    async def count() -> dict[str, int]:
        return effects

    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


def serve_django(listener: socket.socket) -> None:
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpRequest, JsonResponse
    from django.urls import path

    def answer(kind: str, request: HttpRequest) -> JsonResponse:
        order = json.loads(request.body)
        if order.get("amount", 0) < 0:
            return JsonResponse({"detail": "amount must not be negative"}, status=422)
        time.sleep(EFFECT_SECONDS)
        status, body, headers = create(kind, request.headers, request.path, order)
        return JsonResponse(body, status=status, headers=headers)

    def fails_once(request: HttpRequest) -> JsonResponse:
        if fails_now({"idempotency-key": request.headers["Idempotency-Key"]}):
            raise RuntimeError("database unavailable")
        return answer("order", request)

    settings.configure(
        ROOT_URLCONF=sys.modules[__name__],
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="test",
        MIDDLEWARE=["semel.django.IdempotencyMiddleware"],
        LOGGING_CONFIG=None,
    )
    global urlpatterns
    urlpatterns = [
        path("orders", lambda request: answer("order", request)),
        path("refunds", lambda request: answer("refund", request)),
        path("fails-once", fails_once),
        path("effects", lambda _: JsonResponse(effects)),
    ]

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    class Threaded(ThreadingMixIn, WSGIServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    ServerHandler.http_version = "1.1"
    server = Threaded(("127.0.0.1", 0), Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = "127.0.0.1", listener.getsockname()[1]
    server.setup_environ()
    server.set_app(get_wsgi_application())
    server.serve_forever()


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    (serve_asgi if sys.argv[1] == "asgi" else serve_django)(listening)

"""Runs the contract of the claims API against a client library in any language.

    run.py --semel PATH [--store URL] [--without NEED,…] [--only TEXT] -- DRIVER…

The store is an embedded one in a temporary folder, unless --store names another.

The driver is a small program over the library. It reads calls as lines of JSON, runs them at the same time, and writes what
happens to each as lines of JSON; README.md describes both. Between the library and the server stands a proxy that
loses or stalls answers and cuts connections where a case says so.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATIENCE = 30.0
TOKEN = "contract-token-0123456789abcdef-0123456789abcdef"


class Server:
    """The real server. Restarted on the same port, with the same store."""

    def __init__(self, binary: str, store: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "semel.toml").write_text(
            f'secret = {{ env = "CONTRACT_SECRET" }}\n[admin]\nlisten = "127.0.0.1:{self.port}"\n'
            f'[store]\nurl = "{store}"\nmax_outcome = "1KiB"\n'
            f'[[token]]\nname = "driver"\nrole = "producer"\nvalue = {{ env = "CONTRACT_TOKEN" }}\n'
        )
        self.start()

    def start(self) -> None:
        log = open(self.folder / "semel.log", "ab")
        command = [self.binary, "serve", "--config", str(self.folder / "semel.toml")]
        env = {**os.environ, "CONTRACT_SECRET": "a secret of the deployment", "CONTRACT_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
        line = self.process.stdout.readline() if self.process.stdout else b""
        if b"semel ready" not in line:
            raise SystemExit((self.folder / "semel.log").read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


class Proxy:
    """Forwards requests, and does what the faults of a case ask for."""

    def __init__(self, server: Server) -> None:
        self.lock = threading.Lock()
        self.faults: list[dict] = []
        self.seen: dict[str, int] = {}
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                fault = proxy.next_fault(step_of(self.path))
                if fault == "cut":
                    return self.cut()
                if isinstance(fault, dict):
                    return self.answer(fault["status"], fault.get("body", "").encode(), "text/html")
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                try:
                    headers = {"content-type": "application/json"}
                    if "authorization" in self.headers:
                        headers["authorization"] = self.headers["authorization"]
                    connection.request("POST", self.path, body, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                except OSError:
                    return self.cut()
                finally:
                    connection.close()
                if fault == "lose_answer":
                    return self.cut()
                if fault == "stall":
                    return self.stall()
                self.answer(answer.status, content, answer.headers["content-type"])

            def answer(self, status: int, content: bytes, kind: str) -> None:
                try:
                    self.send_response(status)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

            def stall(self) -> None:
                """Keeps the connection open without an answer, until the client gives it up."""
                self.close_connection = True
                self.connection.settimeout(PATIENCE)
                try:
                    while self.connection.recv(1 << 16):
                        pass
                except OSError:
                    pass

            def cut(self) -> None:
                self.close_connection = True
                try:
                    self.connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                pass

        self.listener = Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.listener.server_address[1]}"

    def next_fault(self, step: str) -> object:
        with self.lock:
            self.seen[step] = self.seen.get(step, 0) + 1
            for fault in self.faults:
                if fault["at"] in (step, "any") and fault.get("times", 1) > 0:
                    fault["times"] = fault.get("times", 1) - 1
                    return fault["do"]
        return None

    def reset(self) -> None:
        with self.lock:
            self.faults, self.seen = [], {}


def step_of(path: str) -> str:
    path = path.partition("?")[0]
    if path == "/v1/claims":
        return "claim"
    return path.rpartition("/")[2]


class Driver:
    """The client library under test."""

    def __init__(self, command: list[str], url: str) -> None:
        env = {**os.environ, "SEMEL_ADMIN": url, "SEMEL_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, bufsize=1)
        self.lines: queue.Queue[dict | None] = queue.Queue()
        self.events: dict[str, dict[str, dict]] = {}
        self.effects: dict[str, int] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def tell(self, line: dict) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def wait_for(self, call: str, event: str) -> dict:
        deadline = time.monotonic() + PATIENCE
        while event not in self.events.get(call, {}):
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{call} has not {event} within {PATIENCE:.0f} s") from None
            if line is None:
                raise Failed("the driver ended")
            if line["event"] == "started":
                key = self.keys[line["call"]]
                self.effects[key] = self.effects.get(key, 0) + 1
            self.events.setdefault(line["call"], {})[line["event"]] = line
        return self.events[call][event]

    def begin_case(self) -> None:
        self.events, self.effects, self.keys = {}, {}, {}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Failed(Exception):
    """A case failed."""


def check(found: dict, expected: dict, ended: dict[str, dict]) -> None:
    for path, wanted in expected.items():
        value = at(found, path)
        if isinstance(wanted, dict) and len(wanted) == 1 and next(iter(wanted)).startswith("$"):
            (rule, other), = wanted.items()
            if rule == "$present":
                right = value is not None
            else:
                reference = at(ended[other], path)
                right = {"$same": value == reference, "$greater": value > reference}[rule]
        else:
            right = value == wanted
        if not right:
            raise Failed(f"{path}: expected {wanted!r}, found {value!r} in {found}")


def at(value: object, path: str) -> object:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def play(case: dict, driver: Driver, proxy: Proxy, server: Server) -> None:
    scope = uuid.uuid4().hex
    ended: dict[str, dict] = {}
    # Two cases never share a call.
    own = lambda name: f"{scope[:8]}-{name}"

    def end(name: str, expected: dict) -> None:
        ended[name] = driver.wait_for(own(name), "ended")
        check(ended[name], expected, ended)

    def call(name: str, step: dict) -> None:
        options = {name: value for name, value in step.items() if name not in ("call", "expect", "until")}
        key = options["key"]
        driver.keys[own(name)] = key
        driver.tell({"do": "call", "namespace": "contract", "scope": [scope], **options, "call": own(name)})

    for step in case["steps"]:
        if "fault" in step:
            with proxy.lock:
                proxy.faults.append(dict(step["fault"]))
        elif "heal" in step:
            with proxy.lock:
                proxy.faults.clear()
        elif "call" in step and "until" in step:
            deadline = time.monotonic() + PATIENCE
            for number in range(1_000_000):
                name = f"{step['call']}-{number}"
                call(name, step)
                result = driver.wait_for(own(name), "ended")
                if result["status"] == step["until"]:
                    ended[step["call"]] = result
                    check(result, step.get("expect", {}), ended)
                    break
                if time.monotonic() > deadline:
                    raise Failed(f"never {step['until']}: {result}")
                time.sleep(0.02)
        elif "call" in step:
            call(step["call"], step)
            if "expect" in step:
                end(step["call"], step["expect"])
        elif "started" in step:
            driver.wait_for(own(step["started"]), "started")
        elif "finish" in step:
            driver.tell({"do": "finish", "call": own(step["finish"])})
        elif "cancel" in step:
            driver.tell({"do": "cancel", "call": own(step["cancel"])})
        elif "end" in step:
            end(step["end"], step["expect"])
        elif "seen" in step:
            wait_until(lambda: all(proxy.seen.get(at, 0) >= n for at, n in step["seen"].items()), f"seen {step['seen']}")
        elif "server" in step:
            server.kill()
            if step["server"] == "restart":
                server.start()
        elif "start_server" in step:
            server.start()
        else:
            raise SystemExit(f"unknown step: {step}")
    if driver.effects != case["effects"]:
        raise Failed(f"effects: expected {case['effects']}, found {driver.effects}")


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(what)
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--semel", required=True)
    parser.add_argument("--store", help="an embedded store in a temporary folder by default")
    parser.add_argument("--without", default="", help="what the library cannot do, such as cancel")
    parser.add_argument("--only", default="")
    parser.add_argument("driver", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = [word for word in args.driver if word != "--"]
    cases = json.loads((Path(__file__).parent / "cases.json").read_text())["cases"]
    without = set(filter(None, args.without.split(",")))
    if args.store == "memory:":
        without.add("durable_store")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.semel, args.store or f"embedded:{folder}/store", Path(folder))
        proxy = Proxy(server)
        driver = Driver(command, proxy.url)
        try:
            for case in cases:
                if args.only not in case["name"]:
                    continue
                if without & set(case.get("needs", ())):
                    print(f"skipped {case['name']}")
                    continue
                proxy.reset()
                driver.begin_case()
                try:
                    play(case, driver, proxy, server)
                    print(f"ok      {case['name']}", flush=True)
                except Failed as reason:
                    failed += 1
                    print(f"FAILED  {case['name']}: {reason}", flush=True)
                    if server.process.poll() is not None:
                        server.start()
        finally:
            driver.end()
            server.kill()
            proxy.listener.shutdown()
    sys.exit(1 if failed else 0)


main()

"""`@once` next to the decorator of AWS Powertools on the same Redis, in one run.

    target/clients/venv/bin/python clients/bench/side_by_side.py --semel target/release/semel [--seconds 5]

Prints two tables in Markdown: calls per second and CPU of first calls and of replays; a race of 50 callers on one key, and what the next
caller gets after its owner was killed. CPU is that of all processes: Python, Redis and the server. The rows of one call alternate between both, so that a noisy machine hits both.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "python/src"))


def leave_out(name: str, *members: str) -> None:
    """Powertools imports the AWS SDK for its other store, which is not used here and need not be installed."""
    module = types.ModuleType(name)
    for member in members:
        setattr(module, member, type(member, (Exception,), {}))
    sys.modules[name] = module


leave_out("boto3")
leave_out("boto3.dynamodb")
leave_out("boto3.dynamodb.types", "TypeDeserializer")
leave_out("botocore")
leave_out("botocore.config", "Config")
leave_out("botocore.exceptions", "ClientError")

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

import semel

ROUNDS = 6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Servers:
    """A Redis, and a Semel server on it."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.redis_port, self.port = free_port(), free_port()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        arguments = ["--port", str(self.redis_port), "--save", "", "--dir", str(folder), "--maxmemory-policy", "noeviction"]
        self.redis = subprocess.Popen(["redis-server", *arguments, "--appendonly", "yes"], **quiet)
        self.wait(lambda: redis.Redis(port=self.redis_port).ping())
        store = f"redis://127.0.0.1:{self.redis_port}"
        command = [binary, "serve", "--admin", f"127.0.0.1:{self.port}", "--store", store]
        log = open(folder / "semel.log", "wb")
        self.semel = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.semel.stdout is not None and b"ready" in self.semel.stdout.readline()
        self.url = f"http://127.0.0.1:{self.port}"

    @staticmethod
    def wait(condition: Callable[[], Any]) -> None:
        for _ in range(500):
            try:
                condition()
                return
            except redis.ConnectionError:
                time.sleep(0.02)
        raise SystemExit("Redis does not start")

    def cpu(self) -> dict[str, float]:
        return {"redis": cpu_of(self.redis.pid), "semel": cpu_of(self.semel.pid), "python": own_cpu()}

    def end(self) -> None:
        for process in (self.semel, self.redis):
            process.kill()
            process.wait()


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Side:
    """One decorator, with a function that does nothing."""

    def __init__(self, name: str, call: Callable[[str], Any]) -> None:
        self.name, self.call = name, call
        self.numbers = itertools.count()
        self.rates: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}


def powertools(servers: Servers) -> Side:
    layer = RedisCachePersistenceLayer(client=redis.Redis(port=servers.redis_port, decode_responses=True))
    config = IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=3600)

    @idempotent_function(data_keyword_argument="order", config=config, persistence_store=layer)
    def charge(order: dict[str, Any]) -> dict[str, str]:
        return {"receipt": order["id"]}

    return Side("Powertools", lambda key: charge(order={"id": key, "cents": 1200}))


def once(servers: Servers, name: str, durable: bool) -> Side:
    @semel.once(
        key=lambda order: order["id"], namespace=name.replace(" ", "_"), durable=durable, client=semel.Client(servers.url)
    )
    def charge(order: dict[str, Any]) -> dict[str, str]:
        return {"receipt": order["id"]}

    return Side(name, lambda key: charge({"id": key, "cents": 1200}))


def measure(side: Side, what: str, keys: Callable[[], str], seconds: float, servers: Servers) -> None:
    before, began, calls = servers.cpu(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            side.call(keys())
        calls += 20
    took, after = time.perf_counter() - began, servers.cpu()
    side.rates.setdefault(what, []).append(calls / took)
    parts = {name: (after[name] - before[name]) / calls * 1e6 for name in after}
    side.cpu.setdefault(what, []).append(sum(parts.values()))
    shown = ", ".join(f"{name} {used:.0f} µs" for name, used in parts.items())
    # Every round, so that a reader sees how much the machine was disturbed.
    print(f"{what}: {side.name}: {calls / took:,.0f} per second; CPU {shown}", file=sys.stderr)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def race(side_call: Callable[[str], Any], key: str, callers: int = 50) -> tuple[int, int]:
    """Answers and refusals of callers that start at the same time."""
    barrier, answers, refusals = threading.Barrier(callers), [], []

    def call() -> None:
        barrier.wait()
        try:
            answers.append(side_call(key))
        except (IdempotencyAlreadyInProgressError, semel.InFlightError) as error:
            refusals.append(error)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({str(answer) for answer in answers}) == 1, "all answers are equal"
    return len(answers), len(refusals)


def slow(servers: Servers, which: str, mode: str = "marked") -> Callable[[str], Any]:
    """A decorated function that takes a while, and counts its effects in Redis."""
    counts = redis.Redis(port=servers.redis_port)

    def effect(key: str) -> dict[str, int]:
        counts.incr(f"effects:{which}:{mode}:{key}")
        time.sleep(0.2 if not key.startswith("killed") else 30 if os.environ.get("VICTIM") else 0)
        return {"n": 1}

    if which == "powertools":
        layer = RedisCachePersistenceLayer(client=redis.Redis(port=servers.redis_port, decode_responses=True))
        # Its lease is the time that its function has left.
        config = IdempotencyConfig(event_key_jmespath="id", expires_after_seconds=3600)

        class Context:
            @staticmethod
            def get_remaining_time_in_millis() -> int:
                return 2000

        config.register_lambda_context(Context())

        @idempotent_function(data_keyword_argument="order", config=config, persistence_store=layer)
        def charge(order: dict[str, Any]) -> dict[str, int]:
            return effect(order["id"])

        return lambda key: charge(order={"id": key})

    @semel.once(key=lambda key: key, namespace="slow", mode=mode, lease=2, wait=20, client=semel.Client(servers.url))
    def run(key: str) -> dict[str, int]:
        return effect(key)

    return run


def after_a_kill(servers: Servers, which: str, mode: str) -> str:
    """What the next caller gets after its owner was killed in the effect."""
    key = f"killed-{which}-{mode}"
    counts = redis.Redis(port=servers.redis_port)
    counter = f"effects:{which}:{mode}:{key}"
    victim = os.fork()
    if victim == 0:
        os.environ["VICTIM"] = "1"
        slow(servers, which, mode)(key)
        os._exit(0)
    while not counts.get(counter):
        time.sleep(0.005)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    call, began = slow(servers, which, mode), time.monotonic()
    while True:
        try:
            call(key)
            said = "runs it again"
        except IdempotencyAlreadyInProgressError:
            time.sleep(0.05)
            continue
        except semel.InDoubtError:
            said = "InDoubtError"
        effects = int(counts.get(counter) or 0)
        return f"{said} after {time.monotonic() - began:.1f} s; {effects} effect{'s' if effects > 1 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--semel", required=True)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each of the rounds of a row")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(args.semel, Path(folder))
        try:
            report(servers, args.seconds)
        finally:
            servers.end()


def report(servers: Servers, seconds: float) -> None:
    sides = [powertools(servers), once(servers, "semel", True), once(servers, "semel durable=False", False)]
    for side in sides:
        for _ in range(200):
            side.call(f"warm-{next(side.numbers)}")
        for number in range(500):
            side.call(f"done-{number}")
    for _ in range(ROUNDS):
        for side in sides:
            measure(side, "first call", lambda: f"first-{next(side.numbers)}", seconds, servers)
        for side in sides[:2]:
            measure(side, "replay, 500 keys in turn", lambda: f"done-{next(side.numbers) % 500}", seconds, servers)
    theirs, ours, quick = sides
    print("| | Powertools, calls per second | `@once`, calls per second | Powertools, CPU of a call | `@once`, CPU of a call |")
    print("|---|---|---|---|---|")
    rows = [("first call", ours, "first call"), ("first call, `durable=False`", quick, "first call")]
    rows.append(("replay", ours, "replay, 500 keys in turn"))
    for title, side, what in rows:
        a, b = median(theirs.rates[what]), median(side.rates[what])
        c, d = median(theirs.cpu[what]), median(side.cpu[what])
        print(f"| {title} | {a:,.0f} | {b:,.0f} ({b / a:.1f} ×) | {c:,.0f} µs | {d:,.0f} µs |")
    print("\n| | Powertools | `@once` |\n|---|---|---|")
    answered = [race(slow(servers, which), "race") for which in ("powertools", "semel")]
    cells = [f"{got} answered, {refused} refused" for got, refused in answered]
    print(f"| 50 callers of one key at once | {cells[0]} | {cells[1]} |")
    theirs_killed = after_a_kill(servers, "powertools", "marked")
    print(f"| owner killed, `marked` | {theirs_killed} | {after_a_kill(servers, 'semel', 'marked')} |")
    print(f"| owner killed, `rerun` | {theirs_killed} | {after_a_kill(servers, 'semel', 'rerun')} |")


main()

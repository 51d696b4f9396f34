"""The driver of the contract (clients/contract) over the program of docs/reference/claims-api.md.

    page_driver.py PROGRAM
"""

import json
import os
import sys
import threading
from pathlib import Path

os.environ["ADMIN"] = os.environ["SEMEL_ADMIN"]
page = {"__name__": "page"}
exec(compile(Path(sys.argv[1]).read_text(), "page", "exec"), page)
saying = threading.Lock()


def say(call, event, **more):
    with saying:
        sys.stdout.write(json.dumps({"call": call, "event": event, **more}) + "\n")
        sys.stdout.flush()


def run(line, finished):
    asked, claims, effect = line["call"], [], line["effect"]

    def run_effect(claim):
        claims.append({name: claim.get(name) for name in ("attempt", "fence", "derived_key")})
        say(asked, "started")
        if effect.get("holds"):
            finished.wait()
        if raised := effect.get("raises"):
            raise page["NothingHappened"]() if raised == "nothing_happened" else RuntimeError("the effect failed")
        return "x" * effect["returns_bytes"] if "returns_bytes" in effect else effect["returns"]

    times = {"wait": "wait_ms", "lease": "lease_ms", "retry_for": "retry_for_ms"}
    terms = {name: line[member] / 1000 for name, member in times.items() if member in line}
    terms.update({name: line[name] for name in ("mode", "provider") if name in line})
    try:
        value = page["once"](line["namespace"], line["scope"], line["key"], line.get("payload"), run_effect, **terms)
        say(asked, "ended", status="ran" if claims else "replayed", value=value, claim=claims[0] if claims else None)
    except page["NoResult"] as error:
        status, more = error.status, {}
        if status == "busy":
            status, more = "in_flight", {"retry_after_ms": error.document["retry_after"]}
        say(asked, "ended", status=status, claim=claims[0] if claims else None, **more)
    except Exception:
        say(asked, "ended", status="failed", claim=claims[0] if claims else None)


calls = {}
for text in sys.stdin:
    told = json.loads(text)
    if told["do"] == "call":
        calls[told["call"]] = threading.Event()
        threading.Thread(target=run, args=(told, calls[told["call"]]), daemon=True).start()
    else:
        calls[told["call"]].set()

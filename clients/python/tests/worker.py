"""A worker that can be killed at any time: runs the jobs of a file once each, and notes effects and answers.

    worker.py MODE FOLDER NUMBER

Jobs are the lines of FOLDER/jobs-NUMBER. Started again, it goes on with those that it has not answered.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

import semel

MODE, FOLDER, NUMBER = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
TOGETHER = 8

client = semel.Client(retry_for=60)


def note(name: str, line: str) -> None:
    """One write to a file that is opened for appending: whole, or not at all."""
    with open(FOLDER / name, "ab", buffering=0) as file:
        file.write(line.encode())


def receive(derived_key: str, job: str) -> str:
    """The receiver of mode `keyed`: the first request of a key has the effect, every other one gets the same answer.

    The link is the effect and its evidence at once. A note written after it would be missing if the worker is killed between.
    """
    place, draft = FOLDER / "receiver" / derived_key, FOLDER / "drafts" / secrets.token_hex(8)
    draft.write_text(f"{job}\t{secrets.token_hex(8)}\n")
    try:
        os.link(draft, place)
    except FileExistsError:
        pass
    draft.unlink()
    return place.read_text().split()[1]


@semel.once(
    key=lambda job: job, namespace="jobs", mode=MODE, provider="receiver", lease=2, wait=60, in_flight_max=30, client=client
)
async def run(job: str) -> str:
    if MODE == "keyed":
        value = receive(semel.current_claim().derived_key, job)
    else:
        value = secrets.token_hex(8)
        note("effects", f"{job}\t{value}\n")
    # A moment to be killed in.
    await asyncio.sleep(0.001)
    return value


async def work(jobs: list[tuple[int, str]]) -> None:
    while jobs:
        number, job = jobs.pop()
        try:
            note("answers", f"{job}\t{await run(job)}\n")
        except semel.InDoubtError:
            note("doubts", f"{job}\n")
        note(f"done-{NUMBER}", f"{number}\n")


async def main() -> None:
    done_file = FOLDER / f"done-{NUMBER}"
    done = set(map(int, done_file.read_text().split())) if done_file.exists() else set()
    lines = enumerate((FOLDER / f"jobs-{NUMBER}").read_text().split())
    jobs = [line for line in lines if line[0] not in done]
    jobs.reverse()
    await asyncio.gather(*(work(jobs) for _ in range(TOGETHER)))


asyncio.run(main())

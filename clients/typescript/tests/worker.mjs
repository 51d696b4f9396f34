// A worker that can be killed at any time: runs the jobs of a file once each, and notes effects and answers.
//
//   worker.mjs MODE FOLDER NUMBER
//
// Jobs are the lines of FOLDER/jobs-NUMBER. Started again, it goes on with those that it has not answered.

import { randomBytes } from "node:crypto";
import { appendFileSync, existsSync, linkSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const { Client, InDoubtError } = await import(process.env.SEMEL_CLIENT ?? "../dist/index.js");

const [mode, folder, number] = process.argv.slice(2);
const TOGETHER = 8;
const client = new Client({ retryFor: 60_000 });
const random = () => randomBytes(8).toString("hex");
// One write to a file that is opened for appending: whole, or not at all.
const note = (name, line) => appendFileSync(`${folder}/${name}`, line);

/**
 * The receiver of mode `keyed`: the first request of a key has the effect, every other one gets the same answer.
 *
 * The link is the effect and its evidence at once. A note written after it would be missing if the worker is killed between.
 */
function receive(derivedKey, job) {
  const place = `${folder}/receiver/${derivedKey}`;
  const draft = `${folder}/drafts/${random()}`;
  writeFileSync(draft, `${job}\t${random()}\n`);
  try {
    linkSync(draft, place);
  } catch (error) {
    if (error.code !== "EEXIST") throw error;
  }
  unlinkSync(draft);
  return readFileSync(place, "utf8").trim().split("\t")[1];
}

async function effect(job, claim) {
  const value = mode === "keyed" ? receive(claim.derivedKey, job) : random();
  if (mode !== "keyed") note("effects", `${job}\t${value}\n`);
  // A moment to be killed in.
  await sleep(1);
  return value;
}

const terms = { namespace: "jobs", mode, provider: "receiver", lease: 2_000, wait: 60_000, inFlightMax: 30_000 };
const doneFile = `${folder}/done-${number}`;
const words = (file) => readFileSync(file, "utf8").split("\n").filter(Boolean);
const done = new Set(existsSync(doneFile) ? words(doneFile) : []);
const jobs = [...words(`${folder}/jobs-${number}`).entries()].filter(([place]) => !done.has(String(place)));
jobs.reverse();

async function work() {
  for (let next = jobs.pop(); next !== undefined; next = jobs.pop()) {
    const [place, job] = next;
    try {
      const value = await client.once(job, (claim) => effect(job, claim), { ...terms, payload: { job } });
      note("answers", `${job}\t${value}\n`);
    } catch (error) {
      if (!(error instanceof InDoubtError)) throw error;
      note("doubts", `${job}\n`);
    }
    note(`done-${number}`, `${place}\n`);
  }
}

await Promise.all(Array.from({ length: TOGETHER }, work));

// The driver of the contract (clients/contract) over this package.

import { createInterface } from "node:readline";

const semel = await import(process.env.SEMEL_CLIENT ?? "../dist/index.js");

const skew = 1000 * Number(process.env.CLOCK_JUMP ?? 0);
if (skew !== 0) {
  // A clock that jumps back and forth, at every look: nothing may depend on it.
  const right = Date.now;
  let looks = 0;
  Date.now = () => right() + [0, skew, -skew][looks++ % 3];
}

const statuses = new Map([
  [semel.ConflictError, "conflict"],
  [semel.InDoubtError, "in_doubt"],
  [semel.ExpiredError, "expired"],
  [semel.NotKeptError, "not_kept"],
  [semel.InFlightError, "in_flight"],
  [semel.UnavailableError, "unavailable"],
  [semel.RequestError, "refused"],
  [semel.NotStoredError, "not_stored"],
  [semel.LostError, "lost"],
]);
const clients = new Map();
const calls = new Map();

const say = (call, event, more = {}) => console.log(JSON.stringify({ call, event, ...more }));

async function run(line) {
  const retryFor = line.retry_for_ms ?? 10_000;
  if (!clients.has(retryFor)) clients.set(retryFor, new semel.Client({ retryFor }));
  const { promise: finished, resolve: finish } = withResolvers();
  const cancelling = new AbortController();
  calls.set(line.call, { finish, cancelling });
  let claim = null;
  const effect = async (won) => {
    claim = { attempt: won.attempt, fence: won.fence, derived_key: won.derivedKey ?? null };
    say(line.call, "started");
    if (line.effect.holds) await finished;
    if (line.effect.raises === "nothing_happened") throw new semel.NothingHappened();
    if (line.effect.raises) throw new Error("the effect failed");
    return "returns_bytes" in line.effect ? "x".repeat(line.effect.returns_bytes) : line.effect.returns;
  };
  const options = { namespace: line.namespace, scope: line.scope, signal: cancelling.signal };
  const names = { payload: "payload", mode: "mode", provider: "provider", durable: "durable" };
  const times = { wait: "wait_ms", lease: "lease_ms", retention: "retention_ms" };
  for (const [name, member] of Object.entries({ ...names, ...times })) if (member in line) options[name] = line[member];
  try {
    const value = await clients.get(retryFor).once(line.key, effect, options);
    say(line.call, "ended", { status: claim ? "ran" : "replayed", value, claim });
  } catch (error) {
    const status = cancelling.signal.aborted ? "cancelled" : (statuses.get(error.constructor) ?? "failed");
    const more = status === "in_flight" ? { retry_after_ms: error.retryAfter } : {};
    say(line.call, "ended", { status, claim, ...more });
  }
}

function withResolvers() {
  let resolve;
  const promise = new Promise((done) => (resolve = done));
  return { promise, resolve };
}

for await (const text of createInterface({ input: process.stdin })) {
  const line = JSON.parse(text);
  if (line.do === "call") void run(line);
  else if (line.do === "finish") calls.get(line.call).finish();
  else calls.get(line.call).cancelling.abort();
}

/** The client: claims, events and runs of one Semel server. */

import { randomBytes } from "node:crypto";

import type { Calls } from "./api.js";
import {
  ConflictError,
  ExpiredError,
  InDoubtError,
  InFlightError,
  LostError,
  NothingHappened,
  NotKeptError,
  NotStoredError,
  RequestError,
  UnavailableError,
} from "./errors.js";
import { Heartbeat } from "./heartbeat.js";
import { ANSWER_WITHIN, Wire, milliseconds, sleep } from "./wire.js";

/** The server waits no longer than this for one request; the client then asks again. */
const LONGEST_ASK = 20_000;
/** Milliseconds that an answer may take at least, however short the lease is. */
const LEAST_SLACK = 1_000;

/** `marked`: never twice, in doubt if the worker is lost. `keyed`: again, under the same derived key. `rerun`: again. */
export type Mode = "marked" | "keyed" | "rerun";

export interface ClientOptions {
  /** Address of the admin API; `SEMEL_ADMIN` by default. */
  url?: string;
  /** `SEMEL_TOKEN` by default. */
  token?: string;
  /** How long a request is repeated while the server or its store is unavailable: 10,000 ms by default. */
  retryFor?: number;
}

/** The terms of a claim. All times are in milliseconds. */
export interface Terms {
  /** The operation, such as `charge`. The same key in two namespaces is two effects; in one namespace it is one. */
  namespace: string;
  /** Who asks: one part, or several. */
  scope?: string | readonly string[];
  /** The request, compared as JSON with that of the first call: another one is a `ConflictError`. Without it nothing is compared. */
  payload?: unknown;
  /** Digest of the request, where it is not JSON. */
  fingerprint?: string;
  mode?: Mode;
  /** How long to wait while another caller holds the key: 30,000 by default. */
  wait?: number;
  /** 30,000 by default; renewed in the background. */
  lease?: number;
  /** How long the effect may take: 60,000 by default. */
  inFlightMax?: number;
  /** How long the outcome is kept: a day by default. */
  retention?: number;
  /** Derive a key for this receiver. */
  provider?: string;
  /** `later`: the function calls `claim.begin()` directly before the effect. */
  begin?: "with_claim" | "later";
  /** False: do not wait until the outcome is stored. */
  durable?: boolean;
  /** Ends the wait of this caller. An effect that has begun goes on, and its outcome is stored. */
  signal?: AbortSignal;
}

/** How an outcome is stored. */
export interface CompleteTerms extends Pick<Terms, "durable" | "retention"> {
  /** Why there is no outcome to keep. */
  notKept?: string;
}

export interface OnceOptions<T> extends Terms {
  /** Errors of the function after which the effect did not happen: they free the key. */
  nothingHappened?: (error: unknown) => boolean;
  /** The result as JSON; the result itself by default. */
  encode?: (result: T) => unknown;
  /** The result from JSON. */
  decode?: (stored: unknown) => T;
}

/** One attempt to claim a key. */
export class Attempt {
  readonly lease: number;
  readonly #members: Record<string, unknown>;
  /** True while a claim may have been won without our knowledge. */
  unheard = false;
  /** When the server stops waiting for the last request, whether its client is there or not. */
  waitsUntil = 0;

  constructor(key: string, terms: Terms) {
    this.lease = terms.lease ?? 30_000;
    this.#members = {
      namespace: named(terms),
      key,
      scope: terms.scope,
      payload: terms.payload,
      fingerprint: terms.fingerprint,
      mode: terms.mode,
      begin: terms.begin !== "later",
      lease: `${this.lease}ms`,
      in_flight_max: duration(terms.inFlightMax),
      retention: duration(terms.retention),
      provider: terms.provider,
    };
    this.newOwner();
  }

  /** Names the next request, so that the server recognises its repetitions. */
  newOwner(): void {
    this.#members["owner"] = randomBytes(16).toString("hex");
  }

  request(wait: number): string {
    return JSON.stringify(wait > 0 ? { ...this.#members, wait: duration(wait) } : this.#members);
  }
}

/** A won claim: the effect may run. */
export class Won {
  readonly claimId: string;
  /** The id of the key, as `semel keys` shows it. */
  readonly keyId: string;
  /** Grows with every claim of the key: a receiver that keeps the largest one can refuse a late worker. */
  readonly fence: number;
  /** 1 for the first attempt. */
  readonly attempt: number;
  /** How often an operator asked for this effect to run again. */
  readonly epoch: number;
  /** The key to send to `provider`: the same at every attempt, and it reveals nothing. */
  readonly derivedKey: string | undefined;
  readonly lease: number;
  /** The largest outcome that is kept, in bytes of JSON. */
  readonly maxOutcome: number | undefined;
  /** When the heartbeat renews it: when a third of the lease has passed. */
  due: number;
  readonly #lost = new AbortController();
  readonly #begin: () => Promise<void>;

  constructor(answer: Calls["/v1/claims"]["answer"], lease: number, begin: (won: Won) => Promise<void>) {
    this.claimId = answer.claim_id ?? "";
    this.keyId = answer.key_id;
    this.fence = answer.fence ?? 0;
    this.attempt = answer.attempt ?? 0;
    this.epoch = answer.epoch ?? 0;
    this.derivedKey = answer.derived_key;
    this.lease = lease;
    this.maxOutcome = answer.max_outcome;
    // A claim that is won again, after its answer was lost, has used a part of its lease.
    const left = answer.lease_left === undefined ? lease : milliseconds(answer.lease_left);
    this.due = performance.now() + Math.max(0, left - (lease * 2) / 3);
    this.#begin = () => begin(this);
  }

  /** Aborted once a heartbeat learnt that another worker has the claim. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  lose(): void {
    this.#lost.abort(new LostError("the claim belongs to another worker now"));
  }

  /** Marks that the effect may start, with `begin: "later"`. Call it directly before the effect. */
  begin(): Promise<void> {
    return this.#begin();
  }
}

/** The stored outcome of an effect. */
export class Outcome {
  readonly value: unknown;

  constructor(value: unknown) {
    this.value = value;
  }
}

export class Client {
  readonly #wire: Wire;
  readonly #heartbeat: Heartbeat;
  readonly #retryFor: number;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? process.env["SEMEL_ADMIN"] ?? "http://127.0.0.1:8081";
    this.#wire = new Wire(url, options.token ?? process.env["SEMEL_TOKEN"]);
    this.#heartbeat = new Heartbeat(this.#wire);
    this.#retryFor = options.retryFor ?? 10_000;
  }

  /** Runs `effect` once per key. Every other call with the key gets the result of the first one. */
  async once<T>(key: string, effect: (claim: Won) => T | Promise<T>, options: OnceOptions<T>): Promise<T> {
    named(options);
    const decode = options.decode ?? ((stored: unknown) => stored as T);
    const found = await this.claim(key, options);
    if (found instanceof Outcome) return decode(found.value);
    const running = this.#run(found, key, effect, options, decode);
    return options.signal === undefined ? running : unlessAborted(running, options.signal);
  }

  async #run<T>(
    won: Won,
    key: string,
    effect: (claim: Won) => T | Promise<T>,
    options: OnceOptions<T>,
    decode: (stored: unknown) => T,
  ): Promise<T> {
    let result: T;
    try {
      result = await effect(won);
    } catch (error) {
      await this.end(won, didNothing(error, options) ? "release" : "abandon");
      throw error;
    }
    // The effect has happened: its outcome is stored whatever became of the caller, and whatever its result is.
    const encoded = encode(result, options);
    const terms = { ...options };
    delete terms.signal;
    let other: Outcome | undefined;
    try {
      other = await this.#completeOrFollow(won, key, encoded, terms);
    } catch (error) {
      if (error instanceof LostError || error instanceof InFlightError) {
        throw new LostError("the function ran, and another worker has the claim now");
      }
      // They say what stands in the record.
      const answers = [ConflictError, ExpiredError, InDoubtError, NotKeptError];
      if (answers.some((answer) => error instanceof answer)) throw error;
      throw new NotStoredError("the effect happened, and its outcome could not be stored", result, { cause: error });
    }
    if (other !== undefined) return decode(other.value);
    if (encoded.text === undefined) {
      const told = "the effect happened, and its result has no form in JSON: correct it, or give `encode` to once()";
      throw new NotStoredError(told, result, { cause: encoded.error });
    }
    // All callers get the same: the first one, too, gets what JSON made of it.
    return decode(JSON.parse(encoded.text));
  }

  /** Stores an outcome. If another worker took the claim, its outcome stands; if that one died, the one of this call does. */
  async #completeOrFollow(won: Won, key: string, encoded: Encoded, terms: Terms): Promise<Outcome | undefined> {
    const how: CompleteTerms = { notKept: `the result has no form in JSON: ${nameOf(encoded.error)}` };
    if (terms.durable !== undefined) how.durable = terms.durable;
    try {
      return await this.complete(won, encoded.text, how);
    } catch (error) {
      if (!(error instanceof LostError)) throw error;
      const found = await this.claim(key, terms);
      return found instanceof Outcome ? found : this.complete(found, encoded.text, how);
    }
  }

  /** Claims a key. A won claim is renewed until it is completed, released or abandoned. */
  async claim(key: string, terms: Terms): Promise<Won | Outcome> {
    const attempt = new Attempt(key, terms);
    try {
      const found = await this.#claim(attempt, terms);
      if (found instanceof Won) this.#heartbeat.add(found);
      return found;
    } catch (error) {
      if (attempt.unheard) void this.#heartbeat.giveBack(attempt);
      throw error;
    }
  }

  async #claim(attempt: Attempt, terms: Terms): Promise<Won | Outcome> {
    const deadline = performance.now() + (terms.wait ?? 30_000);
    // The lease runs from the moment at which the server grants it. So one request takes half of it at most: if its answer is
    // lost, the claim is asked for again while it is still held.
    const longestAsk = Math.min(LONGEST_ASK, attempt.lease / 3);
    const slack = Math.min(ANSWER_WITHIN, Math.max(LEAST_SLACK, attempt.lease / 6));
    for (;;) {
      const askedAt = performance.now();
      const ask = Math.max(0, Math.min(deadline - askedAt, longestAsk));
      terms.signal?.throwIfAborted();
      const request = attempt.request(ask);
      attempt.unheard = true;
      attempt.waitsUntil = askedAt + ask;
      let answer: Calls["/v1/claims"]["answer"];
      try {
        const options = { retryFor: this.#retryFor, within: slack + ask, signal: terms.signal };
        answer = await this.#wire.post("/v1/claims", "/v1/claims", request, options);
      } catch (error) {
        if (error instanceof LostError) {
          // A request of this owner came after its end, for example because it was given back.
          attempt.newOwner();
          continue;
        }
        if (error instanceof RequestError) attempt.unheard = false;
        throw error;
      }
      attempt.unheard = false;
      switch (answer.status) {
        case "won":
          return new Won(answer, attempt.lease, (won) => this.#step(won, "begin"));
        case "replay":
          return outcomeOf(answer);
        case "conflict":
          throw new ConflictError("the key was used with another payload");
        case "in_doubt": {
          const text = `the effect may have happened: settle the key ${answer.key_id} (semel keys settle)`;
          throw new InDoubtError(text, answer.key_id);
        }
        case "expired":
          throw new ExpiredError("the effect happened, and its outcome has expired");
        case "busy": {
          const left = deadline - performance.now();
          if (left <= 0) {
            throw new InFlightError("another caller holds the key", milliseconds(answer.retry_after ?? "1s"));
          }
          // The server has no room for another waiter.
          const isEarly = performance.now() < askedAt + ask / 2;
          if (isEarly) await sleep(Math.min(left, 50 + Math.random() * 150), terms.signal);
        }
      }
    }
  }

  /**
   * Stores an outcome, as JSON text. Returns the outcome that stands, if it is another worker's. An outcome that is too large, that
   * something in between refuses, or an `undefined` one, is not kept: the record says so, and the effect does not run again.
   */
  async complete(won: Won, text: string | undefined, terms: CompleteTerms = {}): Promise<Outcome | undefined> {
    const size = text === undefined ? 0 : Buffer.byteLength(text);
    let reason = text === undefined ? (terms.notKept ?? "it was not given") : `${size} bytes are more than are kept`;
    let refusal: unknown;
    try {
      if (text !== undefined && size <= (won.maxOutcome ?? Infinity)) {
        try {
          await this.#complete(won, `"outcome":${text}`, terms);
          return undefined;
        } catch (error) {
          // A proxy in between may read less than the server, or refuse what it reads.
          if (!(error instanceof RequestError)) throw error;
          refusal = error;
          if (error.status !== 413) reason = `${size} bytes were refused with ${error.status}`;
        }
      }
      try {
        await this.#complete(won, `"not_kept":${JSON.stringify(reason)}`, terms);
      } catch (error) {
        throw error instanceof RequestError ? (refusal ?? error) : error;
      }
      return undefined;
    } catch (error) {
      const stands = error instanceof LostError && ("outcome" in error.document || "not_kept" in error.document);
      if (stands) return outcomeOf(error.document);
      throw error;
    } finally {
      this.#heartbeat.remove(won);
    }
  }

  async #complete(won: Won, member: string, terms: CompleteTerms): Promise<void> {
    const path = `/v1/claims/${won.claimId}/complete${terms.durable === false ? "?wait=false" : ""}`;
    const retention = terms.retention === undefined ? "" : `,"retention":"${duration(terms.retention)}"`;
    const retryFor = Math.max(this.#retryFor, won.lease);
    await this.#wire.post("/v1/claims/{claim_id}/complete", path, `{${member}${retention}}`, { retryFor });
  }

  /** Releases (nothing happened) or abandons (nobody knows) a claim. The lease ends it if the server cannot be told. */
  async end(won: Won, how: "release" | "abandon"): Promise<void> {
    this.#heartbeat.remove(won);
    try {
      await this.#step(won, how);
    } catch (error) {
      // Not thrown: the caller needs the error of the function.
      if (!(error instanceof LostError)) process.emitWarning(`claim not ended: key_id=${won.keyId} error=${String(error)}`, "SemelWarning");
    }
  }

  async #step(won: Won, name: "begin" | "release" | "abandon"): Promise<void> {
    await this.#wire.post(`/v1/claims/{claim_id}/${name}`, `/v1/claims/${won.claimId}/${name}`, "", {
      retryFor: this.#retryFor,
    });
  }

  /** Publishes an event. A second one of the same type and key is the same event (`cached`). */
  publish(event: Calls["/v1/events"]["request"]): Promise<Calls["/v1/events"]["answer"]> {
    return this.#wire.post("/v1/events", "/v1/events", JSON.stringify(event), { retryFor: this.#retryFor });
  }

  /**
   * Triggers a run of a target. With `wait`, answers when the run has ended. Without a key, a lost answer is not asked for
   * again: that would be another run.
   */
  trigger(run: Calls["/v1/runs"]["request"], options: { wait?: number } = {}): Promise<Calls["/v1/runs"]["answer"]> {
    const query = options.wait === undefined ? "" : `?wait=true&timeout=${duration(options.wait)}`;
    const hasKey = run.idempotency_key !== undefined && run.idempotency_key !== null;
    return this.#wire.post("/v1/runs", `/v1/runs${query}`, JSON.stringify(run), {
      retryFor: hasKey ? this.#retryFor : 0,
      within: ANSWER_WITHIN + (options.wait ?? 0),
    });
  }
}

function outcomeOf(document: { outcome?: unknown; not_kept?: unknown }): Outcome {
  if (document.not_kept !== undefined) {
    throw new NotKeptError(`the effect happened, and its outcome was not kept: ${String(document.not_kept)}`);
  }
  return new Outcome(document.outcome);
}

/** A result on its way to the record. */
interface Encoded {
  readonly text: string | undefined;
  /** Why there is no text. */
  readonly error?: unknown;
}

/** The result as JSON. It never throws: the effect has happened, and its claim has to be completed. */
function encode<T>(result: T, options: OnceOptions<T>): Encoded {
  try {
    const value = options.encode === undefined ? result : options.encode(result);
    if (value instanceof Promise) {
      value.catch(() => {});
      throw new TypeError("encode() returned a promise");
    }
    // Undefined has no form in JSON.
    return { text: JSON.stringify(value) ?? "null" };
  } catch (error) {
    return { text: undefined, error: error ?? new TypeError("encode() threw nothing") };
  }
}

/** The kind of an error. Its message may hold what is secret. */
function nameOf(error: unknown): string {
  return error instanceof Error ? error.constructor.name : typeof error;
}

/** Whether the function's error says that the effect did not happen. A check that fails itself says nothing. */
function didNothing<T>(error: unknown, options: OnceOptions<T>): boolean {
  try {
    return error instanceof NothingHappened || options.nothingHappened?.(error) === true;
  } catch {
    return false;
  }
}

/** The namespace. Without one, two operations with the same id would share one result. */
function named(terms: Terms | undefined): string {
  // Programs without types can leave it out.
  const namespace: unknown = terms?.namespace;
  if (typeof namespace !== "string" || namespace === "") {
    throw new TypeError('name the operation: once(key, fn, { namespace: "charge" })');
  }
  return namespace;
}

function duration(time: number | undefined): string | undefined {
  return time === undefined ? undefined : `${Math.round(time)}ms`;
}

/** The result, unless the caller stops waiting. */
function unlessAborted<T>(running: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop, { once: true });
    // Handled here even if nobody waits any more.
    running.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

let shared: Client | undefined;

/** The client of every `once` that is not called on one: that of `SEMEL_ADMIN`, or the one given here. */
export function defaultClient(client?: Client): Client {
  if (client !== undefined) shared = client;
  shared ??= new Client();
  return shared;
}

/** Runs `effect` once per key, with the default client. */
export function once<T>(key: string, effect: (claim: Won) => T | Promise<T>, options: OnceOptions<T>): Promise<T> {
  return defaultClient().once(key, effect, options);
}

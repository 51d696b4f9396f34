/** What the middlewares share: the rules of the gateway's `ietf` profile, without I/O. */

import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";

import { type Client, type CompleteTerms, Outcome, type Terms, type Won, defaultClient } from "./client.js";
import {
  ConflictError,
  ExpiredError,
  InDoubtError,
  InFlightError,
  LostError,
  NotKeptError,
  SemelError,
} from "./errors.js";

export const WELL_KNOWN = "/.well-known/idempotency";
const RETENTION = 24 * 3_600_000;
const LONGEST_RETENTION = 3650 * 86_400;
const STREAMED = "it was streamed";

/** Settings of a middleware. */
export interface GuardOptions {
  client?: Client;
  /** `http-app` by default. */
  namespace?: string;
  /** True: refuse requests without a key. */
  required?: boolean;
  /** Finds the caller; the credential of `Authorization` by default. Return "" if all callers are one. */
  principal?: (request: IncomingMessage) => string;
  /** Largest body of a request, and of an answer that is kept, in bytes: 1 MiB by default. */
  maxBody?: number;
}

export interface Stored {
  status: number;
  headers: [string, string][];
  body: Buffer;
}

// Headers that can change an answer: a retry must repeat them.
const COMPARED = new Set(
  (
    "accept accept-charset accept-language content-encoding content-type host prefer x-forwarded-host x-forwarded-port " +
    "x-forwarded-prefix x-forwarded-proto x-http-method-override x-original-url x-rewrite-url x-http-method " +
    "x-method-override cookie api-key x-account x-account-id x-api-key x-auth-token x-customer-id x-org-id " +
    "x-organization-id x-tenant x-tenant-id x-user x-user-id stripe-account stripe-context"
  ).split(" "),
);
// Headers that belong to the connection, to one moment or to one client.
const NEVER_KEPT = new Set(
  (
    "connection date set-cookie set-cookie2 authorization www-authenticate proxy-authenticate proxy-authorization te trailer " +
    "transfer-encoding upgrade keep-alive proxy-connection proxy-authentication-info authentication-info " +
    "idempotent-replayed idempotency-stored idempotency-store idempotency-retention server"
  ).split(" "),
);
const NOT_DETERMINISTIC = new Set([401, 403, 408, 409, 421, 423, 425, 426, 428, 429]);

const PROBLEMS = {
  key_missing: [
    400,
    "An idempotency key is required",
    "send a new Idempotency-Key with every new operation, and the same one with its retries",
  ],
  key_malformed: [
    400,
    "The idempotency key is malformed",
    "a key is 1 to 255 visible ASCII characters, sent once, bare or as a quoted string",
  ],
  scope_missing: [400, "The request does not say who asks", "the header that identifies the caller is missing"],
  body_too_large: [413, "The body is too large", "send a smaller body, or no idempotency key"],
  conflict: [
    422,
    "The idempotency key was used with another request",
    "a retry must repeat method, path, query, headers and body; use a new key for a new operation",
  ],
  in_flight: [
    409,
    "Another request with this idempotency key is in flight",
    "wait, then send the same request with the same key again",
  ],
  expired: [
    410,
    "The idempotency key has expired",
    "this key was used before and its answer is no longer kept; use a new key for a new operation",
  ],
  in_doubt: [
    409,
    "Nobody knows whether an earlier request took effect",
    "it is not run again; a probe or an operator must find out whether it took effect and settle the key",
  ],
  outcome_not_kept: [
    409,
    "The request took effect and its answer was not kept",
    "it is not run again; look up its result by other means",
  ],
  store_unavailable: [
    503,
    "The idempotency store is unavailable",
    "nothing happened; send the same request with the same key again",
  ],
} as const;

type ProblemCode = keyof typeof PROBLEMS;

/** What the application says about its answer, in headers that no client sees. */
interface Steering {
  /** `Idempotency-Store: no`. */
  discard: boolean;
  /** `Idempotency-Retention`, in milliseconds. */
  retention: number | undefined;
}

/** Reads the application's instructions and removes them. */
function takeSteering(answer: Stored): Steering {
  const last = (name: string) => answer.headers.filter(([one]) => one === name).at(-1)?.[1].trim() ?? "";
  const discard = /^(no|false)$/i.test(last("idempotency-store"));
  const seconds = /^\d+$/.test(last("idempotency-retention")) ? Number(last("idempotency-retention")) : undefined;
  answer.headers = answer.headers.filter(([name]) => name !== "idempotency-store" && name !== "idempotency-retention");
  return { discard, retention: seconds === undefined ? undefined : 1_000 * Math.min(seconds, LONGEST_RETENTION) };
}

type Verdict = "keep" | "release" | "abandon";

/** What a status means for the record. */
function verdictOf(status: number): Verdict {
  if (status === 502 || status === 504) return "abandon";
  return status >= 500 || status < 200 || NOT_DETERMINISTIC.has(status) ? "release" : "keep";
}

/** A request that runs. */
export class Running {
  readonly won: Won;
  readonly key: string;
  readonly terms: Terms;

  constructor(won: Won, key: string, terms: Terms) {
    this.won = won;
    this.key = key;
    this.terms = terms;
  }
}

class Refused extends Error {
  readonly code: ProblemCode;

  constructor(code: ProblemCode) {
    super(code);
    this.code = code;
  }
}

/** A refusal, as a problem document (RFC 9457). */
function problem(code: ProblemCode, retryAfter = 1_000): Stored {
  const [status, title, detail] = PROBLEMS[code];
  const retryable = code === "in_flight" || code === "store_unavailable";
  const type = `urn:semel:problem:${code}`;
  const body = Buffer.from(JSON.stringify({ type, title, status, detail, message: detail, code, retryable }));
  const headers: [string, string][] = [["content-type", "application/problem+json"]];
  headers.push(
    retryable ? ["retry-after", String(Math.max(1, Math.ceil(retryAfter / 1_000)))] : ["x-should-retry", "false"],
    ["link", `<${WELL_KNOWN}>; rel="describedby"`],
  );
  return { status, headers, body };
}

function refusal(error: unknown): Stored {
  if (error instanceof Refused) return problem(error.code);
  if (error instanceof ConflictError) return problem("conflict");
  if (error instanceof InFlightError) return problem("in_flight", error.retryAfter);
  if (error instanceof InDoubtError) return problem("in_doubt");
  if (error instanceof ExpiredError) return problem("expired");
  if (error instanceof NotKeptError) return problem("outcome_not_kept");
  if (error instanceof SemelError) return problem("store_unavailable");
  throw error;
}

/** The rules of one middleware. */
export class Guard {
  readonly #options: GuardOptions;

  constructor(options: GuardOptions) {
    this.#options = options;
  }

  get #client(): Client {
    return this.#options.client ?? defaultClient();
  }

  /** Whether the request has a key that counts. */
  guards(request: IncomingMessage): boolean {
    if (request.method !== "POST" && request.method !== "PATCH") return false;
    return this.#options.required === true || request.headers["idempotency-key"] !== undefined;
  }

  /** The published policy, if the request asks for it. */
  policy(request: IncomingMessage): Stored | undefined {
    if (request.method !== "GET" || request.url !== WELL_KNOWN) return undefined;
    const document = {
      supported: true,
      methods: ["POST", "PATCH"],
      key: { header: "idempotency-key", format: "visible-ascii", min_length: 1, max_length: 255 },
      required: this.#options.required === true,
      replay_ttl_seconds: RETENTION / 1_000,
      in_flight: "wait",
      version: 1,
      profile: "ietf",
    };
    return { status: 200, headers: [["content-type", "application/json"]], body: Buffer.from(JSON.stringify(document)) };
  }

  get maxBody(): number {
    return this.#options.maxBody ?? 1 << 20;
  }

  /** Reads a body up to the limit; `undefined` if it is larger. */
  async read(stream: AsyncIterable<Buffer | string>): Promise<Buffer | undefined> {
    const limit = this.maxBody;
    const pieces: Buffer[] = [];
    let size = 0;
    for await (const piece of stream) {
      const bytes = typeof piece === "string" ? Buffer.from(piece) : piece;
      size += bytes.length;
      if (size <= limit) pieces.push(bytes);
    }
    return size <= limit ? Buffer.concat(pieces) : undefined;
  }

  /** Claims the key of a request. It runs, or it has an answer already. */
  async claim(request: IncomingMessage, body: Buffer | undefined): Promise<Running | Stored> {
    try {
      if (body === undefined) throw new Refused("body_too_large");
      const [key, terms] = [keyOf(request), this.#terms(request, body)];
      const found = await this.#client.claim(key, terms);
      return found instanceof Outcome ? fromStored(found.value) : new Running(found, key, terms);
    } catch (error) {
      return refusal(error);
    }
  }

  #terms(request: IncomingMessage, body: Buffer): Terms {
    let scope = this.#options.principal?.(request);
    if (scope === undefined) {
      const [credential, ...others] = linesOf(request, "authorization");
      // Node keeps the first of several lines, and the application may read another one.
      if (credential === undefined || others.length > 0) throw new Refused("scope_missing");
      scope = createHash("sha256").update(credential, "latin1").digest("hex");
    }
    const terms: Terms = {
      namespace: this.#options.namespace ?? "http-app",
      fingerprint: fingerprint(request, body),
      wait: 5_000,
      retention: RETENTION,
    };
    return scope === "" ? terms : { ...terms, scope };
  }

  /**
   * Stores, releases or abandons by the answer, and returns the answer that the client gets. Of a stream that has ended, only that
   * it happened is stored. Never throws: the application has answered.
   */
  async settle(running: Running, answer: Stored, streamed = false): Promise<Stored> {
    const steering = takeSteering(answer);
    const verdict = steering.discard ? "release" : verdictOf(answer.status);
    try {
      if (verdict === "keep") {
        const terms: CompleteTerms = { notKept: STREAMED };
        if (steering.retention !== undefined) terms.retention = steering.retention;
        const other = await this.#complete(running, streamed ? undefined : toStored(answer), terms);
        return other === undefined ? answer : fromStored(other.value);
      }
      await this.#client.end(running.won, verdict);
    } catch (error) {
      const another = error instanceof NotKeptError || error instanceof ConflictError || error instanceof ExpiredError;
      // Another request's outcome stands, and its answer cannot be given.
      if (another) return refusal(error);
      // Not stored: the end of the lease decides.
    }
    return { ...answer, headers: [...answer.headers, ["idempotency-stored", "false"]] };
  }

  /** Whether a streamed answer with this head is settled at its end. Otherwise now: the key is freed, or in doubt. */
  settlesAtEnd(status: number, headers: [string, string][]): boolean {
    return !takeSteering({ status, headers, body: Buffer.alloc(0) }).discard && verdictOf(status) === "keep";
  }

  /** The answer broke off: nobody knows how far the application came. */
  async abandon(running: Running): Promise<void> {
    try {
      await this.#client.end(running.won, "abandon");
    } catch {
      // The end of the lease decides.
    }
  }

  async #complete(running: Running, text: string | undefined, terms: CompleteTerms): Promise<Outcome | undefined> {
    try {
      return await this.#client.complete(running.won, text, terms);
    } catch (error) {
      if (!(error instanceof LostError)) throw error;
      // Another one took the claim: its outcome stands. If it died, this answer does.
      const found = await this.#client.claim(running.key, running.terms);
      return found instanceof Outcome ? found : this.#client.complete(found, text, terms);
    }
  }
}

/** The lines of a header as they came; `headers` joins them, or keeps the first one. */
function linesOf(request: Pick<IncomingMessage, "rawHeaders">, name: string): string[] {
  const { rawHeaders } = request;
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}

function keyOf(request: IncomingMessage): string {
  const [value, ...others] = linesOf(request, "idempotency-key");
  if (value === undefined) throw new Refused("key_missing");
  if (others.length > 0) throw new Refused("key_malformed");
  const trimmed = value.trim();
  const quoted = /^"((?:[^"\\]|\\["\\])*)"$/.exec(trimmed);
  const key = quoted?.[1] === undefined ? trimmed : quoted[1].replace(/\\(["\\])/g, "$1");
  if (quoted === null && /[",]/.test(trimmed)) throw new Refused("key_malformed");
  if (!/^[\x21-\x7e]{1,255}$/.test(key)) throw new Refused("key_malformed");
  return key;
}

/** The part of a request that is compared. */
type FingerprintedRequest = Pick<IncomingMessage, "method" | "url" | "rawHeaders"> & { originalUrl?: string };

/** The same as that of the other clients of this repository: services in two languages share their keys. */
export function fingerprint(request: FingerprintedRequest, body: Buffer): string {
  // Express gives a mounted router only its part of the URL.
  const target = request.originalUrl ?? request.url ?? "/";
  const question = target.indexOf("?");
  const path = question < 0 ? target : target.slice(0, question);
  const query = question < 0 ? "" : target.slice(question + 1);
  const lines: [string, string][] = [];
  for (let at = 0; at + 1 < request.rawHeaders.length; at += 2) {
    const name = request.rawHeaders[at]?.toLowerCase() ?? "";
    if (COMPARED.has(name)) lines.push([name, request.rawHeaders[at + 1] ?? ""]);
  }
  lines.sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x < y ? -1 : x > y ? 1 : 0));
  const texts = [request.method ?? "", path, query === "" ? "" : `?${query}`, ...lines.flat()];
  const hash = createHash("sha256");
  for (const part of [...texts.map((text) => Buffer.from(text, "latin1")), body]) {
    // With its length: no byte can move from one part to the next.
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(part.length));
    hash.update(length).update(part);
  }
  return hash.digest("hex");
}

function toStored(answer: Stored): string {
  const headers = answer.headers.filter(
    ([name]) => !NEVER_KEPT.has(name) && !/^(ratelimit|x-ratelimit|x-rate-limit)/.test(name),
  );
  const text = answer.body.toString("utf8");
  const body = Buffer.from(text, "utf8").equals(answer.body) ? { body: text } : { body_base64: answer.body.toString("base64") };
  return JSON.stringify({ status: answer.status, headers, ...body });
}

function fromStored(value: unknown): Stored {
  const document = value as { status?: number; headers?: [string, string][]; body?: string; body_base64?: string };
  if (document.status === undefined) throw new NotKeptError("the answer was not kept");
  const { body, body_base64 } = document;
  return {
    status: document.status,
    headers: [...(document.headers ?? []), ["idempotent-replayed", "true"]],
    body: body === undefined ? Buffer.from(body_base64 ?? "", "base64") : Buffer.from(body, "utf8"),
  };
}

/** Headers as Node gives them, as lines. */
export function headerLines(headers: Record<string, number | string | readonly string[] | undefined>): [string, string][] {
  return Object.entries(headers).flatMap(([name, value]): [string, string][] => {
    if (value === undefined) return [];
    const values: readonly (string | number)[] = typeof value === "object" ? value : [value];
    return values.map((one) => [name.toLowerCase(), String(one)]);
  });
}

/** Lines as an object whose repeated names have lists. */
export function headerObject(lines: [string, string][]): Record<string, string | string[]> {
  const headers: Record<string, string | string[]> = {};
  for (const [name, value] of lines) {
    const before = headers[name];
    headers[name] = before === undefined ? value : [...[before].flat(), value];
  }
  return headers;
}

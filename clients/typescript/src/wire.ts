/** Requests that are repeated until they have an answer: the server recognises the owner or the claim. */

import type { Calls } from "./api.js";
import { LostError, RequestError, UnavailableError } from "./errors.js";

const FIRST_PAUSE = 20;
const LONGEST_PAUSE = 1_000;
/** Milliseconds until a connection without an answer is given up. */
export const ANSWER_WITHIN = 10_000;

export interface Options {
  /** How long to repeat it while the server or its store is unavailable, in milliseconds. */
  retryFor: number;
  /** How long one request may take, in milliseconds. */
  within?: number;
  signal?: AbortSignal | undefined;
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
}

export class Wire {
  readonly #url: string;
  readonly #headers: Record<string, string>;

  constructor(url: string, token: string | undefined) {
    const parsed = new URL(url);
    if (parsed.protocol !== "http:" && parsed.protocol !== "https:") {
      throw new TypeError(`expected a URL such as http://127.0.0.1:8081, found ${url}`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#headers = { "content-type": "application/json" };
    if (token !== undefined) this.#headers["authorization"] = `Bearer ${token}`;
  }

  /**
   * Sends a request once, and reads its answer to the end.
   *
   * The time limit is a timer of our own, which keeps the process alive: after a server was killed, a fetch of Node 20 can stay
   * without a result and without a connection.
   */
  send(path: string, body: string, within: number, signal?: AbortSignal): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const controller = new AbortController();
      const stop = (reason: unknown) => {
        reject(reason);
        controller.abort(reason);
      };
      const aborted = () => stop(signal?.reason);
      const timer = setTimeout(() => stop(new Error("the server did not answer in time")), within);
      signal?.addEventListener("abort", aborted, { once: true });
      fetch(this.#url + path, { method: "POST", headers: this.#headers, body, signal: controller.signal })
        .then(async (answer) => ({ status: answer.status, headers: answer.headers, text: await answer.text() }))
        .then(resolve, reject)
        .finally(() => {
          clearTimeout(timer);
          signal?.removeEventListener("abort", aborted);
        });
    });
  }

  /** Sends a request until it has an answer. */
  async post<P extends keyof Calls>(path: P, target: string, body: string, options: Options): Promise<Calls[P]["answer"]> {
    const within = options.within ?? ANSWER_WITHIN;
    let giveUp: number | undefined;
    let pause = FIRST_PAUSE;
    for (;;) {
      let problem: UnavailableError;
      let atLeast = 0;
      try {
        const answer = await this.send(target, body, within, options.signal);
        const found = objectOf(answer.text);
        const isGood = answer.status >= 200 && answer.status < 300;
        if (isGood && found !== undefined) return found as Calls[P]["answer"];
        const document = problemOf(answer.status, found);
        if (document.code === "lost") throw new LostError(document.detail, document);
        if (!document.retryable) throw new RequestError(answer.status, document.code, document.detail);
        problem = new UnavailableError(`${document.detail} (${answer.status}, ${document.code})`);
        if (answer.status === 429) atLeast = 1_000 * Number(answer.headers.get("retry-after") ?? 0);
      } catch (error) {
        options.signal?.throwIfAborted();
        if (error instanceof LostError || error instanceof RequestError) throw error;
        problem = new UnavailableError("the Semel server gave no answer", { cause: error });
      }
      const now = performance.now();
      giveUp ??= now + options.retryFor;
      const wait = Math.max(pause * (0.75 + Math.random() / 2), atLeast);
      if (now + wait >= giveUp) throw problem;
      await sleep(wait, options.signal);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }
}

interface ProblemDocument extends Record<string, unknown> {
  code: string;
  detail: string;
  retryable: boolean;
}

/** The object that an answer holds. `undefined`: it comes from something between us and the server. */
function objectOf(text: string): Record<string, unknown> | undefined {
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found === "object" && found !== null && !Array.isArray(found)) return found as Record<string, unknown>;
  } catch {
    // Not JSON.
  }
  return undefined;
}

function problemOf(status: number, found: Record<string, unknown> | undefined): ProblemDocument {
  if (found !== undefined && "code" in found) return found as ProblemDocument;
  // Not ours. Whatever answers 200 in the place of the server may be gone at the next request.
  const retryable = status === 502 || status === 503 || status === 504 || (status >= 200 && status < 300);
  return { code: "unknown", detail: "the answer is not that of a Semel server", retryable };
}

export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** The milliseconds of a duration as the server writes it. */
export function milliseconds(text: string): number {
  const factors: Record<string, number> = { ns: 1e-6, us: 1e-3, µs: 1e-3, ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 };
  let total = 0;
  for (const [, number, unit] of text.matchAll(/([\d.]+)\s*([a-zµ]+)/g)) {
    total += Number(number) * (factors[unit ?? "s"] ?? 1e3);
  }
  return total;
}

/**
 * Middleware for Express (and every framework with its signature). It behaves like the gateway's `ietf` profile.
 *
 *     app.use(idempotency());
 *
 * Put it before the body parsers: it reads the body of a request with a key, and gives JSON as `req.body`, everything else
 * as a Buffer.
 */

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";

import { Guard, type GuardOptions, Running, type Stored, headerLines, headerObject } from "./gateway.js";

export type { GuardOptions } from "./gateway.js";

export type Middleware = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void;

export function idempotency(options: GuardOptions = {}): Middleware {
  const guard = new Guard(options);
  return (request, response, next) => {
    const policy = guard.policy(request);
    if (policy !== undefined) return answer(response, policy);
    if (!guard.guards(request)) return next();
    start(guard, request, response).then((runs) => runs && next(), next);
  };
}

/** Claims the key. True if the request runs. */
async function start(guard: Guard, request: IncomingMessage, response: ServerResponse): Promise<boolean> {
  const body = await guard.read(request);
  const found = await guard.claim(request, body);
  if (!(found instanceof Running)) {
    answer(response, found);
    return false;
  }
  const parsed = request as IncomingMessage & { body?: unknown; rawBody?: Buffer; _body?: boolean };
  parsed.rawBody = body ?? Buffer.alloc(0);
  parsed.body = parse(request, parsed.rawBody);
  // Body parsers leave such a request alone.
  parsed._body = true;
  new Collected(guard, found, response).intercept();
  return true;
}

function parse(request: IncomingMessage, body: Buffer): unknown {
  if (!/^application\/([\w.-]+\+)?json\b/i.test(request.headers["content-type"] ?? "")) return body;
  if (body.length === 0) return {};
  try {
    return JSON.parse(body.toString("utf8"));
  } catch {
    return body;
  }
}

type Done = (error?: Error | null) => void;

/**
 * Collects the answer of the application, which the client gets once it is stored. A stream of events, or a body over the limit, is
 * passed on as it comes.
 *
 * An application may go on after it has answered, and answer again: that is without effect here, as it is on the wire.
 */
class Collected {
  readonly #guard: Guard;
  readonly #running: Running;
  readonly #response: ServerResponse;
  readonly #plain: Pick<ServerResponse, "write" | "end" | "writeHead" | "flushHeaders">;
  #pieces: Buffer[] = [];
  #size = 0;
  /** `started`: the application has sent the head of its answer. `ended`: it is being stored. `answered`: the client has it. */
  #state: "open" | "started" | "streams" | "ended" | "answered" = "open";

  constructor(guard: Guard, running: Running, response: ServerResponse) {
    this.#guard = guard;
    this.#running = running;
    this.#response = response;
    const { write, end, writeHead, flushHeaders } = response;
    this.#plain = { write, end, writeHead, flushHeaders };
  }

  intercept(): void {
    const response = this.#response;
    response.writeHead = ((status: number, ...rest: unknown[]) => {
      this.#writeHead(status, rest);
      return response;
    }) as typeof response.writeHead;
    response.flushHeaders = () => this.#implyHead();
    response.write = ((chunk: unknown, encoding: unknown, done: unknown) =>
      this.#write(chunk, encoding, done)) as typeof response.write;
    response.end = ((chunk: unknown, encoding: unknown, done: unknown) => {
      this.#end(chunk, encoding, done);
      return response;
    }) as typeof response.end;
    // What error handlers ask before they answer: an answer that has started cannot become a 500. While one is being stored, a second
    // one does no harm, and to cut the connection would.
    Object.defineProperty(response, "headersSent", {
      configurable: true,
      get: () => this.#state !== "open" && this.#state !== "ended",
    });
    response.once("close", () => {
      // The answer broke off in its middle. If it was the client that hung up, the end of the answer is still accepted.
      if (this.#state === "started" || this.#state === "streams") void this.#guard.abandon(this.#running);
    });
  }

  #writeHead(status: number, rest: unknown[]): void {
    if (this.#state !== "open") return;
    const response = this.#response;
    response.statusCode = status;
    const headers = rest.find((one) => typeof one === "object" && one !== null);
    if (Array.isArray(headers)) {
      const flat = headers.flat() as string[];
      const names = new Set<string>();
      for (let at = 0; at + 1 < flat.length; at += 2) {
        const [name, value] = [flat[at] ?? "", flat[at + 1] ?? ""];
        if (names.has(name.toLowerCase())) response.appendHeader(name, value);
        else response.setHeader(name, value);
        names.add(name.toLowerCase());
      }
    } else {
      for (const [name, value] of Object.entries((headers ?? {}) as OutgoingHttpHeaders)) {
        if (value !== undefined) response.setHeader(name, value);
      }
    }
    this.#start();
  }

  /** Through the response: middlewares that add headers at the last moment listen there. */
  #implyHead(): void {
    if (this.#state === "open") this.#response.writeHead(this.#response.statusCode);
  }

  #start(): void {
    this.#state = "started";
    if (/^text\/event-stream/i.test(String(this.#response.getHeader("content-type") ?? ""))) this.#stream();
  }

  /** From here on, everything is passed on as it comes. */
  #stream(): void {
    this.#state = "streams";
    this.#takeSteering();
    // Node itself calls it.
    this.#response.writeHead = this.#plain.writeHead;
    Reflect.apply(this.#plain.flushHeaders, this.#response, []);
    for (const piece of this.#pieces) Reflect.apply(this.#plain.write, this.#response, [piece]);
    this.#pieces = [];
  }

  /** Instructions of the application that no client sees. They are read at the end. */
  #steering: [string, string][] = [];

  #takeSteering(): void {
    for (const name of ["idempotency-store", "idempotency-retention"]) {
      const value = this.#response.getHeader(name);
      if (value === undefined) continue;
      this.#steering.push([name, String(value)]);
      this.#response.removeHeader(name);
    }
  }

  #write(chunk: unknown, encoding: unknown, done: unknown): boolean {
    const ended = (typeof encoding === "function" ? encoding : done) as Done | undefined;
    if (this.#state === "ended" || this.#state === "answered") {
      if (typeof ended === "function") process.nextTick(ended, new Error("write after end"));
      return false;
    }
    this.#implyHead();
    if (this.#state === "streams") return Reflect.apply(this.#plain.write, this.#response, [chunk, encoding, done]);
    this.#take(chunk, encoding);
    if (this.#size > this.#guard.maxBody) this.#stream();
    if (typeof ended === "function") process.nextTick(ended);
    return true;
  }

  #end(chunk: unknown, encoding: unknown, done: unknown): void {
    const ended = [chunk, encoding, done].find((one) => typeof one === "function") as Done | undefined;
    if (this.#state === "ended" || this.#state === "answered") {
      if (ended !== undefined) process.nextTick(ended);
      return;
    }
    const response = this.#response;
    this.#implyHead();
    const streams = (this.#state as string) === "streams";
    this.#state = "ended";
    if (typeof chunk !== "function") this.#take(chunk, encoding);
    const given: Stored = {
      status: response.statusCode,
      headers: [...headerLines(response.getHeaders()), ...this.#steering],
      body: Buffer.concat(this.#pieces),
    };
    if (ended !== undefined) response.once("finish", ended);
    void this.#guard.settle(this.#running, given, streams).then((settled) => this.#answer(streams, settled, given.body));
  }

  #answer(streams: boolean, settled: Stored, rest: Buffer): void {
    const response = this.#response;
    this.#state = "answered";
    // Whatever the application did to it meanwhile.
    if (response.writableEnded || response.destroyed) return;
    try {
      response.writeHead = this.#plain.writeHead;
      if (streams) Reflect.apply(this.#plain.end, response, [rest]);
      else answer(response, settled, this.#plain);
    } catch (error) {
      // The client learns from a retry what is stored.
      response.destroy(error instanceof Error ? error : undefined);
    }
  }

  #take(chunk: unknown, encoding: unknown): void {
    let piece: Buffer;
    if (typeof chunk === "string") {
      piece = Buffer.from(chunk, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8");
    } else if (chunk instanceof Uint8Array) {
      piece = Buffer.from(chunk);
    } else {
      return;
    }
    this.#pieces.push(piece);
    this.#size += piece.length;
  }
}

function answer(response: ServerResponse, stored: Stored, plain: Pick<ServerResponse, "end"> = response): void {
  response.statusCode = stored.status;
  for (const name of response.getHeaderNames()) response.removeHeader(name);
  for (const [name, value] of Object.entries(headerObject(stored.headers))) response.setHeader(name, value);
  const bodyless = stored.status === 204 || stored.status === 304;
  if (!bodyless) response.setHeader("content-length", stored.body.length);
  Reflect.apply(plain.end, response, [bodyless ? undefined : stored.body]);
}

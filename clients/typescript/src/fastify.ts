/**
 * Plugin for Fastify. It behaves like the gateway's `ietf` profile.
 *
 *     app.register(idempotency);
 */

import type { IncomingMessage } from "node:http";
import { Readable } from "node:stream";

import { Guard, type GuardOptions, Running, type Stored, headerLines, headerObject } from "./gateway.js";

export type { GuardOptions } from "./gateway.js";

interface Request {
  raw: IncomingMessage;
}

interface Reply {
  statusCode: number;
  code(status: number): Reply;
  headers(headers: Record<string, string | string[]>): Reply;
  getHeaders(): Record<string, number | string | string[] | undefined>;
  removeHeader(name: string): Reply;
  send(payload?: unknown): unknown;
}

/** The part of Fastify that the plugin uses. */
interface Instance {
  addHook(name: "preParsing", hook: (request: Request, reply: Reply, payload: Readable) => Promise<unknown>): unknown;
  addHook(name: "onSend", hook: (request: Request, reply: Reply, payload: unknown) => Promise<unknown>): unknown;
  get(path: string, handler: (request: Request, reply: Reply) => unknown): unknown;
}

async function plugin(app: Instance, options: GuardOptions): Promise<void> {
  const guard = new Guard(options);
  const claims = new WeakMap<Request, Running>();

  app.addHook("preParsing", async (request, reply, payload) => {
    if (!guard.guards(request.raw)) return payload;
    const body = await guard.read(payload);
    const found = await guard.claim(request.raw, body);
    if (!(found instanceof Running)) return answer(reply, found);
    claims.set(request, found);
    return Object.assign(Readable.from(body?.length ? [body] : []), { receivedEncodedLength: body?.length ?? 0 });
  });

  app.addHook("onSend", async (request, reply, payload) => {
    const running = claims.get(request);
    if (running === undefined) return payload;
    claims.delete(request);
    const head = { status: reply.statusCode, headers: headerLines(reply.getHeaders()) };
    const stream = streamOf(payload);
    for (const name of ["idempotency-store", "idempotency-retention"]) reply.removeHeader(name);
    if (stream !== undefined && guard.settlesAtEnd(head.status, head.headers)) {
      return watch(guard, running, { ...head, body: Buffer.alloc(0) }, stream);
    }
    const body = typeof payload === "string" || payload instanceof Uint8Array ? Buffer.from(payload as string) : Buffer.alloc(0);
    const given: Stored = { ...head, body };
    const settled = await guard.settle(running, given, stream !== undefined);
    if (settled === given) return payload;
    if (settled.body === body) {
      reply.headers(headerObject(settled.headers));
      return stream ?? payload;
    }
    for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name);
    reply.code(settled.status).headers(headerObject(settled.headers));
    return settled.body;
  });

  app.get("/.well-known/idempotency", (request, reply) => {
    const policy = guard.policy(request.raw);
    return policy === undefined ? reply.code(404).send() : answer(reply, policy);
  });
}

function streamOf(payload: unknown): Readable | undefined {
  if (payload instanceof Readable) return payload;
  const isWeb = typeof payload === "object" && payload !== null && "getReader" in payload;
  return isWeb ? Readable.fromWeb(payload as Parameters<typeof Readable.fromWeb>[0]) : undefined;
}

/** Passes a stream on. Only its end says that the effect happened. */
function watch(guard: Guard, running: Running, head: Stored, stream: Readable): Readable {
  let ended = false;
  stream.once("end", () => {
    ended = true;
    void guard.settle(running, head, true);
  });
  stream.once("close", () => {
    if (!ended) void guard.abandon(running);
  });
  return stream;
}

function answer(reply: Reply, stored: Stored): unknown {
  return reply.code(stored.status).headers(headerObject(stored.headers)).send(stored.body);
}

/** Registers for the whole application, not only for the routes of the plugin itself. */
export const idempotency: (app: unknown, options: GuardOptions) => Promise<void> = Object.assign(
  (app: unknown, options: GuardOptions) => plugin(app as Instance, options),
  { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "semel-idempotency" },
);

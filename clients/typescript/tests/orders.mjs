// The orders API that `semel check` judges, with this package's middleware.
//
//   orders.mjs FOLDER express|fastify      where FOLDER/node_modules is
//
// Prints its URL once it listens, and ends when its standard input does. `GET /effects` tells how often each request took effect.

import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

process.env.NODE_ENV = "production";
const [folder, framework] = process.argv.slice(2);
const require = createRequire(join(folder, "package.json"));
const { idempotency } = await import(join(dirname(process.env.SEMEL_CLIENT), `${framework}.js`));

const EFFECT_MS = 30;
const effects = {};
const failed = new Set();
let made = 0;

/** Status, body and headers of the answer. */
async function create(kind, headers, path, order) {
  if (order.amount < 0) return [422, { message: "amount must not be negative" }, {}];
  await sleep(EFFECT_MS);
  const request = `${headers.authorization} ${path} ${headers["idempotency-key"]}`;
  effects[request] = (effects[request] ?? 0) + 1;
  made += 1;
  const id = `${kind}_${String(made).padStart(6, "0")}`;
  return [201, { id, amount: order.amount }, { location: `/${kind}s/${id}` }];
}

async function failsOnce(headers, path, order) {
  const key = headers["idempotency-key"];
  if (failed.has(key)) return create("order", headers, path, order);
  failed.add(key);
  return [500, { message: "database unavailable" }, {}];
}

const handlers = {
  "/orders": (...request) => create("order", ...request),
  "/refunds": (...request) => create("refund", ...request),
  "/fails-once": failsOnce,
};

async function serveExpress() {
  const express = require("express");
  const app = express();
  app.use(idempotency());
  app.use(express.json());
  for (const [path, handler] of Object.entries(handlers)) {
    app.post(path, async (request, response) => {
      const [status, body, headers] = await handler(request.headers, request.path, request.body);
      response.status(status).set(headers).json(body);
    });
  }
  app.get("/effects", (request, response) => response.json(effects));
  const server = await new Promise((listens) => {
    const server = app.listen(0, "127.0.0.1", () => listens(server));
  });
  return `http://127.0.0.1:${server.address().port}`;
}

async function serveFastify() {
  const app = require("fastify")();
  app.register(idempotency, {});
  for (const [path, handler] of Object.entries(handlers)) {
    app.post(path, async (request, reply) => {
      const [status, body, headers] = await handler(request.headers, path, request.body);
      return reply.code(status).headers(headers).send(body);
    });
  }
  app.get("/effects", () => effects);
  return app.listen({ port: 0, host: "127.0.0.1" });
}

console.log(await (framework === "express" ? serveExpress() : serveFastify()));
process.stdin.on("end", () => process.exit()).resume();

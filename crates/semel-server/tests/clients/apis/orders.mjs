// An orders API on express, made idempotent by a published package as its README shows, with its store in memory.
//
//     orders.mjs FOLDER PACKAGE      where FOLDER/node_modules is, and one of the names in `packages`
//
// Prints its URL once it listens, and ends when its standard input does. `GET /effects` tells how often each request took effect: the witness of a race.

import { createRequire } from "node:module";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

// express shows stack traces to clients elsewhere.
process.env.NODE_ENV = "production";
const print = (line) => process.stdout.write(`${line}\n`);
console.log = console.info = console.warn = console.error;

const [, , folder, name] = process.argv;
const require = createRequire(join(folder, "package.json"));
const express = require("express");

const EFFECT_MS = 30;

// What `app.post` takes for every path, and whether a request was answered before its handler.
const packages = {
  none: () => ({ middleware: (req, res, next) => next(), isAnswered: () => false }),
  "@node-idempotency/core": () => core((res) => ({ status: res.statusCode }), () => ({})),
  "@node-idempotency/core, by caller, with Location": () =>
    core(
      (res) => ({ status: res.statusCode, location: res.get("location") }),
      (req) => ({ cacheKeyPrefix: req.get("authorization") }),
    ),
  "express-idempotency": () => {
    const { idempotency, getSharedIdempotencyService } = require("express-idempotency");
    return { middleware: idempotency(), isAnswered: (req) => getSharedIdempotencyService().isHit(req) };
  },
};

// `additional`: what is stored of an answer besides its body. `options`: the package's options for one request.
function core(additional, options) {
  const { Idempotency, IdempotencyErrorCodes } = require("@node-idempotency/core");
  const { MemoryStorageAdapter } = require("@node-idempotency/storage-adapter-memory");
  const idempotency = new Idempotency(new MemoryStorageAdapter(), {});
  const statuses = {
    [IdempotencyErrorCodes.REQUEST_IN_PROGRESS]: 409,
    [IdempotencyErrorCodes.IDEMPOTENCY_FINGERPRINT_MISSMATCH]: 422,
  };
  const middleware = async (req, res, next) => {
    const { method, headers, body, path } = req;
    const request = { method, headers, body, path, options: options(req) };
    let stored;
    try {
      stored = await idempotency.onRequest(request);
    } catch (error) {
      res.status(statuses[error.code] ?? 400).json({ code: error.code, message: error.message });
      return;
    }
    if (stored) {
      const { status, location } = stored.additional;
      if (location) res.location(location);
      res.status(status).json(stored.body);
      return;
    }
    const json = res.json.bind(res);
    res.json = (answer) => {
      idempotency.onResponse(request, { body: answer, additional: additional(res) }).then(() => json(answer), next);
      return res;
    };
    next();
  };
  return { middleware, isAnswered: () => false };
}

const { middleware, isAnswered } = packages[name]();
const effects = {};
const failed = new Set();
let made = 0;

async function create(kind, req, res) {
  if (req.body.amount < 0) {
    res.status(422).json({ message: "amount must not be negative" });
    return;
  }
  await sleep(EFFECT_MS);
  const request = `${req.get("authorization")} ${req.path} ${req.get("idempotency-key")}`;
  effects[request] = (effects[request] ?? 0) + 1;
  made += 1;
  const id = `${kind}_${String(made).padStart(6, "0")}`;
  res.status(201).location(`/${kind}s/${id}`).json({ id, amount: req.body.amount });
}

// The handler is not called for a request that the package has answered.
const handle = (handler) => async (req, res) => {
  if (!isAnswered(req)) await handler(req, res);
};

const app = express();
app.use(express.json());
app.post("/*path", middleware);
app.post("/orders", handle((req, res) => create("order", req, res)));
app.post("/refunds", handle((req, res) => create("refund", req, res)));
app.post("/fails-once", handle(async (req, res) => {
  const key = req.get("idempotency-key");
  if (failed.has(key)) return create("order", req, res);
  failed.add(key);
  res.status(500).json({ message: "database unavailable" });
}));
app.get("/effects", (req, res) => res.json(effects));

const server = app.listen(0, "127.0.0.1", () => print(`http://127.0.0.1:${server.address().port}`));
process.stdin.on("end", () => process.exit()).resume();

// Faults of the network and of applications. Run by `node --test`; `SEMEL_ADMIN` is a real server.
//
//   FOLDER=… SEMEL_CLIENT=… node --test faults.mjs      where FOLDER/node_modules has Express and Fastify
//
// Between client and server stands a link that can cut or stall its connections.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { request as httpRequest } from "node:http";
import { createRequire } from "node:module";
import { createServer, connect } from "node:net";
import { dirname, join } from "node:path";
import { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

process.env.NODE_ENV = "production";
const semel = await import(process.env.SEMEL_CLIENT);
const place = (name) => join(dirname(process.env.SEMEL_CLIENT), `${name}.js`);
const { idempotency } = await import(place("express"));
const { idempotency: plugin } = await import(place("fastify"));
const require = createRequire(join(process.env.FOLDER, "package.json"));
const express = require("express");

// A crash of the process is a failure of the test that runs.
const crashes = [];
process.on("unhandledRejection", (error) => crashes.push(error));
process.on("uncaughtException", (error) => crashes.push(error));

const closing = [];
after(async () => {
  for (const close of closing) close();
  // Undici keeps its connections open.
  setTimeout(() => process.exit(), 100).unref();
});

/** A TCP relay to the server. Of `stalled` connections, requests arrive and answers do not. */
async function link() {
  const { hostname, port } = new URL(process.env.SEMEL_ADMIN);
  const state = { stalled: 0, url: "" };
  const server = createServer((inner) => {
    const outer = connect(port, hostname);
    inner.pipe(outer);
    if (state.stalled-- > 0) outer.resume();
    else outer.pipe(inner);
    for (const [one, other] of [[inner, outer], [outer, inner]]) one.on("error", () => other.destroy()).on("close", () => other.destroy());
  });
  await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
  closing.push(() => server.close());
  state.url = `http://127.0.0.1:${server.address().port}`;
  return state;
}

/** Serves an Express application, and returns how to send it a request. */
async function serve(app) {
  return sender(await serveUrl(app));
}

/** Serves an Express application, and returns its URL. */
async function serveUrl(app) {
  const server = await new Promise((listens) => {
    const server = app.listen(0, "127.0.0.1", () => listens(server));
  });
  closing.push(() => (server.close(), server.closeAllConnections()));
  return `http://127.0.0.1:${server.address().port}`;
}

function sender(url) {
  return async (path, key, body = "{}") => {
    const headers = { "idempotency-key": key, authorization: "Bearer x", "content-type": "application/json" };
    const answer = await fetch(url + path, { method: "POST", headers, body });
    return { status: answer.status, headers: answer.headers, text: await answer.text() };
  };
}

const code = (answer) => JSON.parse(answer.text).code;
const isReplayed = (answer) => answer.headers.get("idempotent-replayed") === "true";

// Inside a router, Express gives only the rest of the URL. The same key and body in two routers got one answer.
test("mounted routers have the path of the client", async () => {
  const app = express();
  for (const name of ["orders", "refunds"]) {
    const router = express.Router();
    router.use(idempotency());
    router.post("/items", (_, response) => response.status(201).json({ name }));
    app.use(`/${name}`, router);
  }
  const send = await serve(app);
  const key = randomUUID();
  assert.equal(JSON.parse((await send("/orders/items", key)).text).name, "orders");
  assert.ok(isReplayed(await send("/orders/items", key)));
  const other = await send("/refunds/items", key);
  assert.deepEqual([other.status, code(other)], [422, "conflict"]);
});

// Services in two languages share their keys. clients/python/tests/faults.py has the same request and the same digest.
test("a request has the same fingerprint in all languages", async () => {
  const { fingerprint } = await import(place("gateway"));
  const rawHeaders = ["Host", "shop.example", "Accept", "*/*", "accept", "text/plain", "X-Other", "1", "Cookie", "a=\u00e4"];
  const request = { method: "POST", originalUrl: "/orders/%C3%A4%20b%25?x=1&y=%20", url: "/", rawHeaders };
  assert.equal(fingerprint(request, Buffer.from('{"amount":1}')), "a6c5d4c8effb740ae44ff74ba071540d41072c61fe363f38048ba14e0c95ed9f");
});

/** Sends a POST whose header lines stay apart, which fetch would join. */
async function sendLines(url, lines) {
  const request = httpRequest(url, { method: "POST", headers: lines.flat() });
  request.end("{}");
  const [answer] = await once(request, "response");
  return { status: answer.statusCode, headers: new Headers(answer.headers), text: await text(answer) };
}

// Node keeps the first of two lines: one caller got the answer of another, whom the application took for the caller.
test("a request with two credentials or two keys is refused", async () => {
  let effects = 0;
  const application = express();
  application.use(idempotency());
  application.post("/orders", (_, response) => response.status(201).json((effects += 1)));
  const fastify = require("fastify")();
  fastify.register(plugin, {});
  fastify.post("/orders", (_, reply) => reply.code(201).send({ effect: (effects += 1) }));
  closing.push(() => fastify.close());
  const urls = [await serveUrl(application), await fastify.listen({ port: 0, host: "127.0.0.1" })];
  for (const url of urls) {
    const head = [["host", new URL(url).host], ["content-type", "application/json"]];
    const [one, two] = [["authorization", "Bearer x"], ["Authorization", "Bearer y"]];
    const [key, other] = [["idempotency-key", randomUUID()], ["idempotency-key", randomUUID()]];
    const refused = await sendLines(`${url}/orders`, [...head, one, two, key]);
    assert.deepEqual([refused.status, code(refused)], [400, "scope_missing"]);
    const malformed = await sendLines(`${url}/orders`, [...head, one, key, other]);
    assert.deepEqual([malformed.status, code(malformed)], [400, "key_malformed"]);
    assert.equal((await sendLines(`${url}/orders`, [...head, one, key])).status, 201);
  }
  assert.equal(effects, urls.length);
});

test("a lost claim follows the record", async () => {
  const client = new semel.Client();
  const complete = client.complete.bind(client);
  client.complete = async (won, _, terms) => {
    client.complete = complete;
    await complete(won, JSON.stringify({ status: 201, headers: [], body: "theirs" }), terms);
    throw new semel.LostError("lost");
  };
  const app = express();
  app.use(idempotency({ client }));
  app.post("/orders", (_, response) => response.status(201).end("mine"));
  const answer = await (await serve(app))("/orders", randomUUID());
  assert.deepEqual([answer.status, answer.text, isReplayed(answer)], [201, "theirs", true]);
});

// An application that goes on after its answer wrote to the response while its answer was stored. Then the process crashed.
test("work after the answer changes nothing", async () => {
  const app = express();
  let effects = 0;
  app.use(idempotency());
  app.post("/twice", (_, response) => {
    effects += 1;
    response.status(201).json({ first: true });
    response.status(500).set("x-late", "1").json({ second: true });
    response.write("third");
    response.end("fourth", () => {});
  });
  for (const [path, pause] of [["/fails", 1], ["/fails-later", 100]]) {
    app.post(path, async (_, response) => {
      effects += 1;
      response.status(201).json({ first: true });
      await sleep(pause);
      throw new Error("work after the answer failed");
    });
  }
  app.post("/later", async (_, response) => {
    effects += 1;
    response.status(201).json({ first: true });
    response.writeHead(500, { "x-late": "1" });
    await sleep(50);
    response.end("late");
  });
  // The handler of Express itself cuts the connection, also under the next request.
  app.use((error, request, response, next) => (response.headersSent ? undefined : response.status(500).end("failed")));
  const send = await serve(app);
  for (const path of ["/twice", "/fails", "/fails-later", "/later"]) {
    const key = randomUUID();
    for (let again = 0; again < 2; again++) {
      const answer = await send(path, key);
      assert.deepEqual([answer.status, answer.text, answer.headers.get("x-late")], [201, '{"first":true}', null], path);
      assert.equal(isReplayed(answer), again === 1);
    }
  }
  await sleep(200);
  assert.equal(effects, 4);
  assert.deepEqual(crashes, []);
});

test("an error before the head frees the key, an answer that breaks off leaves doubt", async () => {
  const app = express();
  const effects = {};
  const count = (path) => (effects[path] = (effects[path] ?? 0) + 1);
  app.use(idempotency());
  app.post("/before", (request, response) => {
    if (count(request.path) === 1) throw new Error("database unavailable");
    response.status(201).end("made");
  });
  app.post("/head", (request, response) => {
    count(request.path);
    response.writeHead(201, ["content-type", "text/plain"]);
    throw new Error("the template is broken");
  });
  app.post("/part", (request, response) => {
    count(request.path);
    response.status(201).write("a part");
    throw new Error("the template is broken");
  });
  app.post("/stream", async (request, response) => {
    count(request.path);
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write("data: 1\n\n");
    await sleep(20);
    response.destroy();
  });
  app.use((error, request, response, next) => (response.headersSent ? next(error) : response.status(500).end("failed")));
  const send = await serve(app);
  const key = randomUUID();
  assert.equal((await send("/before", key)).status, 500);
  assert.deepEqual([(await send("/before", key)).status, effects["/before"]], [201, 2]);
  for (const path of ["/head", "/part", "/stream"]) {
    const key = randomUUID();
    await assert.rejects(send(path, key), path);
    assert.equal(code(await send(path, key)), "in_doubt", path);
    assert.equal(effects[path], 1, path);
  }
  assert.deepEqual(crashes, []);
});

test("streams and large answers are passed on, not kept, and not run again", async () => {
  const app = express();
  let effects = 0;
  const large = "x".repeat(1 << 20);
  app.use(idempotency());
  app.post("/stream", (_, response) => {
    effects += 1;
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.flushHeaders();
    response.write("data: 1\n\n");
    response.end();
  });
  app.post("/pieces", async (_, response) => {
    effects += 1;
    for (let piece = 0; piece < 3; piece++) {
      response.write(large);
      await sleep(1);
    }
    response.end(large);
  });
  app.post("/whole", (_, response) => {
    effects += 1;
    response.send(large.repeat(4));
  });
  const send = await serve(app);
  for (const path of ["/stream", "/pieces", "/whole"]) {
    const key = randomUUID();
    const answer = await send(path, key);
    assert.deepEqual([answer.status, answer.text.length], [200, path === "/stream" ? 9 : 4 << 20], path);
    assert.equal(code(await send(path, key)), "outcome_not_kept", path);
  }
  assert.equal(effects, 3);
});

test("the application decides what is stored", async () => {
  const app = express();
  let effects = 0;
  app.use(idempotency());
  app.post("/orders", (_, response) => {
    effects += 1;
    response.set({ "idempotency-store": "no", "idempotency-retention": "3600" }).json({ effects });
  });
  const send = await serve(app);
  const key = randomUUID();
  for (let again = 1; again <= 2; again++) {
    const answer = await send("/orders", key);
    assert.deepEqual(JSON.parse(answer.text), { effects: again });
    assert.equal(answer.headers.get("idempotency-stored"), "false");
    assert.equal(answer.headers.get("idempotency-store") ?? answer.headers.get("idempotency-retention"), null);
  }
});

test("a stream of Fastify took effect when it has ended", async () => {
  const app = require("fastify")();
  app.register(plugin, {});
  const effects = {};
  const count = (path) => (effects[path] = (effects[path] ?? 0) + 1);
  async function* pieces(fails) {
    yield "1";
    await sleep(20);
    if (fails) throw new Error("the source is gone");
    yield "2";
  }
  app.post("/ends", (_, reply) => (count("/ends"), reply.send(Readable.from(pieces(false)))));
  app.post("/fails", (_, reply) => (count("/fails"), reply.send(Readable.from(pieces(true)))));
  app.post("/large", (_, reply) => (count("/large"), reply.send("x".repeat(3 << 20))));
  app.post("/free", (_, reply) => (count("/free"), reply.header("Idempotency-Store", "no").send("1")));
  const send = sender(await app.listen({ port: 0, host: "127.0.0.1" }));
  closing.push(() => (app.server.close(), app.server.closeAllConnections()));
  const [ends, fails, large, free] = [randomUUID(), randomUUID(), randomUUID(), randomUUID()];
  assert.equal((await send("/ends", ends)).text, "12");
  assert.equal(code(await send("/ends", ends)), "outcome_not_kept");
  await assert.rejects(send("/fails", fails));
  assert.equal(code(await send("/fails", fails)), "in_doubt");
  assert.equal((await send("/large", large)).text.length, 3 << 20);
  assert.equal(code(await send("/large", large)), "outcome_not_kept");
  for (let again = 0; again < 2; again++) {
    const answer = await send("/free", free);
    assert.deepEqual([answer.headers.get("idempotency-store"), answer.headers.get("idempotency-stored")], [null, "false"]);
  }
  assert.deepEqual(effects, { "/ends": 1, "/fails": 1, "/large": 1, "/free": 2 });
  assert.deepEqual(crashes, []);
});

test("an outcome of any size is not run again", async () => {
  const client = new semel.Client();
  let runs = 0;
  const effect = () => ((runs += 1), "x".repeat(3 << 20));
  for (const durable of [true, false]) {
    const options = { namespace: "large", mode: "keyed", provider: "p", durable };
    const key = randomUUID();
    assert.equal((await client.once(key, effect, options)).length, 3 << 20);
    await assert.rejects(client.once(key, effect, options), semel.NotKeptError);
  }
  assert.equal(runs, 2);
});

test("after the effect, an unavailable server is not stored", async () => {
  const client = new semel.Client();
  const effect = () => {
    client.complete = async () => {
      throw new semel.LostError("lost");
    };
    client.claim = async () => {
      throw new semel.UnavailableError("no answer");
    };
    return "receipt";
  };
  await assert.rejects(client.once(randomUUID(), effect, { namespace: "late" }), (error) => error instanceof semel.NotStoredError && error.result === "receipt");
});

// The answer to a claim is stalled, not lost. The second request wins the claim again, with a part of its lease gone.
test("a stalled claim is asked for again and renewed in time", async () => {
  const relay = await link();
  relay.stalled = 1;
  const client = new semel.Client({ url: relay.url });
  const won = await client.claim(randomUUID(), { namespace: "stalled", lease: 6_000, wait: 0 });
  const left = won.due - performance.now();
  assert.ok(won instanceof semel.Won && won.attempt === 1);
  assert.ok(left <= 1_100, `a sixth of the lease was over before: ${left}`);
  await client.end(won, "release");
});

/** Requests whose path or body has this part are answered here, as often as `answers` has one. */
async function tampered(part, answers, run) {
  const plain = globalThis.fetch;
  globalThis.fetch = async (url, options) => {
    const matches = String(url).includes(part) || String(options?.body).includes(part);
    return matches && answers.length > 0 ? answers.shift()() : plain(url, options);
  };
  try {
    return await run();
  } finally {
    globalThis.fetch = plain;
  }
}

const problem = (status, code) => () => new Response(JSON.stringify({ code, detail: "no", retryable: false }), { status });

// The error of the encoder counted as an error of the function. With a `nothingHappened` that accepted it, the result freed its key,
// and the effect happened again.
test("a result without a form in JSON is not run again", async () => {
  const client = new semel.Client();
  const circular = {};
  circular.self = circular;
  const failing = () => {
    throw new Error("no connection to the vault");
  };
  for (const [result, encode] of [[10n], [circular], [{ toJSON: failing }], ["receipt", failing], ["receipt", async () => "no text yet"]]) {
    for (const mode of ["marked", "keyed", "rerun"]) {
      let runs = 0;
      const options = { namespace: "after", mode, nothingHappened: () => true, ...(encode && { encode }) };
      const key = randomUUID();
      const call = () => client.once(key, () => ((runs += 1), result), options);
      await assert.rejects(call(), (error) => error instanceof semel.NotStoredError && error.result === result && error.cause !== undefined);
      await assert.rejects(call(), semel.NotKeptError);
      assert.equal(runs, 1);
    }
  }
});

test("a lone surrogate in a result is stored", async () => {
  const client = new semel.Client();
  const result = { "name\udcff": "caf\ud800" };
  let runs = 0;
  const key = randomUUID();
  const call = () => client.once(key, () => ((runs += 1), result), { namespace: "after", mode: "rerun" });
  assert.deepEqual([await call(), await call(), runs], [result, result, 1]);
});

test("an outcome that is refused is not kept and not run again", async () => {
  const client = new semel.Client();
  let runs = 0;
  const key = randomUUID();
  const call = () => client.once(key, () => ((runs += 1), "receipt"), { namespace: "after", mode: "rerun" });
  assert.equal(await tampered('"outcome"', [problem(403, "firewall")], call), "receipt");
  await assert.rejects(call(), semel.NotKeptError);
  assert.equal(runs, 1);
});

test("an answer that is not JSON is asked for again", async () => {
  const client = new semel.Client();
  const key = randomUUID();
  const strange = ["<html>", "[]", "null", ""].map((text) => () => new Response(text));
  const call = () => client.once(key, () => "receipt", { namespace: "after", mode: "rerun" });
  assert.deepEqual([await tampered("/complete", strange, call), strange.length, await call()], ["receipt", 0, "receipt"]);
});

// The token was revoked while the function ran: callers saw that, and not what the function threw.
test("an error of the function is thrown whatever the server says", async () => {
  const client = new semel.Client();
  const failure = new Error("no such card");
  const warnings = [];
  const listen = (warning) => warnings.push(warning.message);
  process.on("warning", listen);
  const fails = () => {
    throw failure;
  };
  for (const [part, nothingHappened] of [["/abandon", () => false], ["/release", () => true]]) {
    const call = () => client.once(randomUUID(), fails, { namespace: "after", nothingHappened });
    await assert.rejects(tampered(part, [problem(401, "unauthorized")], call), failure);
  }
  // A predicate that fails says nothing: the key is in doubt.
  const key = randomUUID();
  const call = () => client.once(key, fails, { namespace: "after", nothingHappened: (error) => error.card.number });
  await assert.rejects(call(), failure);
  await assert.rejects(call(), semel.InDoubtError);
  await sleep(0);
  process.off("warning", listen);
  assert.equal(warnings.filter((text) => text.includes("claim not ended")).length, 2, warnings.join());
});

// Two operations on one id shared the namespace `default`, and so one result.
test("an operation without a name is refused before it runs", async () => {
  let runs = 0;
  const effect = () => (runs += 1);
  for (const options of [undefined, {}, { namespace: "" }, { scope: "acct_1" }]) {
    await assert.rejects(semel.once(randomUUID(), effect, options), (error) => error instanceof TypeError && /namespace/.test(error.message));
  }
  assert.equal(runs, 0);
});

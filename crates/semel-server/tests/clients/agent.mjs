// An agent that is built with @adcp/sdk and does not deduplicate, and the buyer's client of the same package. Public
// options only, nothing patched.
//
//     agent.mjs FOLDER      where FOLDER/node_modules is
//
// Says where the agent listens and which tools the package calls mutating, then answers one line for each it reads:
//
//     {"url": …, "key": …, "budget": …, "times": N}   buys N times at once with the client, at this address and with this
//                            key: [{"id", "replayed"} or {"error"}]
//     {"ask": url}           what the client reads of the agent's capabilities: {"idempotency"}
//     {"count": true}        how many purchases there are: {"buys", "slots"}

import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

// Its lines are for the test alone; what the package prints goes to standard error.
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
console.log = console.info = console.warn = console.error;
// Where it is not set, the package refuses to start without deduplication.
process.env.NODE_ENV = "test";

const require = createRequire(join(process.argv[2], "package.json"));
const { AgentClient, MUTATING_TASKS } = require("@adcp/sdk");
const { createAdcpServer, serve } = require("@adcp/sdk/server/legacy/v5");

let buys = 0;
let slots = 0;

const agent = () =>
  createAdcpServer({
    name: "agent",
    version: "1",
    idempotency: "disabled",
    resolveAccount: async (reference) => ({ id: reference.account_id }),
    mediaBuy: {
      getProducts: async () => ({ products: [] }),
      createMediaBuy: async () => {
        buys += 1;
        const confirmed_at = "2030-01-01T00:00:00Z";
        return { media_buy_id: `mb_${buys}`, status: "active", confirmed_at, revision: 1, packages: [] };
      },
    },
    customTools: {
      book_slot: {
        handler: async () => {
          slots += 1;
          return { content: [], structuredContent: { slot_id: `slot_${slots}` } };
        },
      },
    },
  });

const client = (url) =>
  new AgentClient({ id: "agent", name: "agent", agent_uri: url, protocol: "mcp", auth_token: "token-of-alice" }, {});

async function buy(url, key, budget) {
  const made = await client(url).createMediaBuy({
    idempotency_key: key,
    account: { account_id: "account" },
    brand: { domain: "example.com" },
    start_time: "asap",
    end_time: "2031-01-01T00:00:00Z",
    packages: [{ product_id: "product", pricing_option_id: "price", budget }],
  });
  if (!made.success) throw new Error(made.error ?? JSON.stringify(made.data));
  return { id: made.data.media_buy_id, replayed: made.data.replayed ?? false };
}

async function answer({ url, key, budget, times, ask, count }) {
  if (count) return { buys, slots };
  if (ask) return { idempotency: (await client(ask).getAdcpCapabilities({})).data.adcp.idempotency };
  const one = () => buy(url, key, budget).catch((error) => ({ error: `${error.name}: ${error.message}` }));
  return Promise.all(Array.from({ length: times }, one));
}

const server = serve(agent, { port: 0 });
// On a busy machine, a connection that the agent closes early meets the next request.
server.keepAliveTimeout = 60_000;
await new Promise((listening) => server.on("listening", listening));
print({ url: `http://127.0.0.1:${server.address().port}`, mutating: [...MUTATING_TASKS].sort() });
for await (const line of createInterface({ input: process.stdin })) {
  print(await answer(JSON.parse(line)).catch((error) => ({ error: `${error.name}: ${error.message}` })));
}

// Makes calls with a real client, as an application would: public options only, nothing patched. As driver.py.
//
//     driver.mjs FOLDER      where FOLDER/node_modules is

import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const Stripe = createRequire(join(process.argv[2], "package.json"))("stripe");

async function create({ order, url, timeout, key }) {
  const { hostname, port } = new URL(url);
  const stripe = new Stripe("sk_test_semel", {
    protocol: "http",
    host: hostname,
    port,
    timeout: timeout * 1000,
    maxNetworkRetries: 5,
  });
  const params = { amount: 1200, currency: "eur", metadata: { order } };
  const made = await stripe.paymentIntents.create(params, key ? { idempotencyKey: key } : {});
  return made.id;
}

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  create(call)
    .then((id) => ({ id }))
    .catch((error) => ({ error: `${error.name}: ${error.code} ${error.message}` }))
    .then((answer) => console.log(JSON.stringify({ order: call.order, ...answer })));
}

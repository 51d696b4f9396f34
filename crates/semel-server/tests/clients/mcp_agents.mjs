// Agents that are built with @modelcontextprotocol/sdk and know nothing of keys, and the client of the same package. Public
// options only, nothing patched.
//
//     mcp_agents.mjs FOLDER      where FOLDER/node_modules is
//
// The agents differ in how they answer and whether they have sessions. Says where they listen ({"json": url, …}), then
// answers one line for each it reads:
//
//     {"url": …, "tool": …, "arguments": …, "times": N}   N calls at once, each by a client of its own that lists the tools
//                                                         first: {"answers": [the result, or {"error"}]}
//     {"count": true}                                     how many effects there are: {"effects"}

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(join(process.argv[2], "package.json"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { z } = require("zod");

const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

let effects = 0;

const result = (structuredContent) => ({
  structuredContent,
  content: [{ type: "text", text: JSON.stringify(structuredContent) }],
});

function agent() {
  const server = new McpServer({ name: "agent", version: "1" });
  const act = async () => {
    effects += 1;
    const effect = effects;
    await new Promise((done) => setTimeout(done, 20));
    return result({ effect });
  };
  const n = z.number().optional();
  server.registerTool("requires_key", { inputSchema: { idempotency_key: z.string(), n } }, act);
  server.registerTool("names_no_key", { inputSchema: { n } }, act);
  server.registerTool("names_nothing", {}, act);
  // Its results have no other members, by the list that clients compare them with.
  server.registerTool("declares_result", { inputSchema: { n }, outputSchema: { effect: z.number() } }, act);
  server.registerTool("get_adcp_capabilities", {}, async () => result({ adcp: { major_versions: [3] } }));
  return server;
}

async function listen(enableJsonResponse, hasSessions) {
  const sessions = new Map();
  // On a busy machine, a connection that the agent closes early meets the next request.
  const server = createServer({ keepAliveTimeout: 60_000 }, async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"]);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: hasSessions ? randomUUID : undefined,
        enableJsonResponse,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await agent().connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return `http://127.0.0.1:${server.address().port}`;
}

async function call(url, tool, args) {
  const headers = { authorization: "Bearer alice" };
  const client = new Client({ name: "client", version: "1" });
  try {
    await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
    await client.listTools();
    const { structuredContent, content } = await client.callTool({ name: tool, arguments: args });
    return structuredContent ?? JSON.parse(content[0].text);
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  } finally {
    await client.close();
  }
}

async function answer({ url, tool, arguments: args, times, count }) {
  if (count) return { effects };
  return { answers: await Promise.all(Array.from({ length: times }, () => call(url, tool, args))) };
}

print({
  json: await listen(true, false),
  events: await listen(false, false),
  json_session: await listen(true, true),
  events_session: await listen(false, true),
});
for await (const line of createInterface({ input: process.stdin })) {
  print(await answer(JSON.parse(line)).catch((error) => ({ error: `${error.name}: ${error.message}` })));
}

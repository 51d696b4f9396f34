// Writes src/api.ts: the types of the admin API, from its OpenAPI document.
//
//   node scripts/types.mjs http://127.0.0.1:8081          write
//   node scripts/types.mjs http://127.0.0.1:8081 --check  fail if the file differs

import { readFileSync, writeFileSync } from "node:fs";

const [server, check] = process.argv.slice(2);
if (server === undefined) {
  console.error("usage: types.mjs ADMIN_URL [--check]");
  process.exit(2);
}
const file = new URL("../src/api.ts", import.meta.url);
const answer = await fetch(`${server}/openapi.json`);
const { components, paths } = await answer.json();

const name = (text) => (/^[A-Za-z_]\w*$/.test(text) ? text : JSON.stringify(text));
const many = (text) => (text.includes(" | ") ? `(${text})` : text);

/** A schema as a type. */
function type(schema, indent = "") {
  if (schema === true || schema === undefined) return "unknown";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices && !schema.properties) return [...new Set(choices.map((one) => type(one, indent)))].join(" | ");
  const types = [schema.type].flat();
  if (types.length > 1) return types.map((one) => type({ ...schema, type: one }, indent)).join(" | ");
  switch (types[0]) {
    case "string":
    case "boolean":
    case "null":
      return types[0];
    case "integer":
    case "number":
      return "number";
    case "array":
      if (schema.prefixItems) return `[${schema.prefixItems.map((one) => type(one, indent)).join(", ")}]`;
      return `${many(type(schema.items, indent))}[]`;
    case "object":
      return object(schema, indent);
    default:
      return "unknown";
  }
}

function object(schema, indent) {
  const members = Object.entries(schema.properties ?? {});
  if (members.length === 0) {
    const values = schema.additionalProperties;
    return values === undefined || values === false ? "Record<string, unknown>" : `Record<string, ${type(values, indent)}>`;
  }
  const required = new Set(schema.required ?? []);
  const inner = `${indent}  `;
  const lines = members.map(([member, of]) => {
    const said = of.description === undefined ? "" : `${inner}/** ${of.description.replaceAll("*/", "*\\/")} */\n`;
    return `${said}${inner}${name(member)}${required.has(member) ? "" : "?"}: ${type(of, inner)};\n`;
  });
  return `{\n${lines.join("")}${indent}}`;
}

/** The named schema with the most members, all of which this one has too: its type is that one and the rest. */
function base(schema) {
  const same = (one, member) =>
    JSON.stringify(one.properties[member]) === JSON.stringify(schema.properties[member]) &&
    (one.required ?? []).includes(member) === (schema.required ?? []).includes(member);
  const size = ([, one]) => Object.keys(one.properties ?? {}).length;
  const all = Object.entries(components.schemas).filter(
    ([, one]) => one !== schema && one.properties && Object.keys(one.properties).every((member) => same(one, member)),
  );
  const [largest] = all.sort((a, b) => size(b) - size(a));
  return largest && size(largest) > 5 && size(largest) < size(["", schema]) ? largest : undefined;
}

function named(schema) {
  const found = schema.properties && base(schema);
  if (found === undefined) return type(schema);
  const [name, { properties }] = found;
  const rest = Object.entries(schema.properties).filter(([member]) => !(member in properties));
  return `${name} & ${object({ ...schema, properties: Object.fromEntries(rest) }, "")}`;
}

/** Bodies of requests and answers that have no name of their own. */
function* bodies() {
  for (const [path, methods] of Object.entries(paths)) {
    if (!path.startsWith("/v1/claims") && path !== "/v1/events" && path !== "/v1/runs") continue;
    const { post } = methods;
    const answer = post.responses["200"] ?? post.responses["202"] ?? post.responses["201"];
    yield [path, post.requestBody?.content["application/json"].schema, answer.content["application/json"].schema];
  }
}

let text = "// Written by scripts/types.mjs from /openapi.json. Do not edit.\n";
for (const [one, schema] of Object.entries(components.schemas).sort(([a], [b]) => (a < b ? -1 : 1))) {
  const said = schema.description === undefined ? "" : `/** ${schema.description} */\n`;
  text += `\n${said}export type ${one} = ${named(schema)};\n`;
}
text += "\n/** Request and answer of the calls that this client makes. */\nexport interface Calls {\n";
for (const [path, request, response] of bodies()) {
  const asked = request === undefined ? "undefined" : type(request, "    ");
  text += `  ${JSON.stringify(path)}: {\n    request: ${asked};\n    answer: ${type(response, "    ")};\n  };\n`;
}
text += "}\n";

if (check !== "--check") {
  writeFileSync(file, text);
} else if (readFileSync(file, "utf8") !== text) {
  console.error("src/api.ts differs from /openapi.json: run scripts/types.mjs against this server");
  process.exit(1);
}

// Opens pages of the console in Chromium: light, dark and 390 px wide; keeps screenshots, runs axe, and plays clicks.
//
//   node console.mjs FOLDER < orders.json
//
// FOLDER holds node_modules. The orders: { url, out, pages: [{ name, path }], variants, steps: [...] }. The answer is one line of
// JSON: what axe found, what the browser complained about, and how the steps ended.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const folder = process.argv[2];
const require = createRequire(join(folder, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const orders = JSON.parse(readFileSync(0, "utf8"));

const VARIANTS = {
  light: { viewport: { width: 1280, height: 900 }, colorScheme: "light" },
  dark: { viewport: { width: 1280, height: 900 }, colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 844 }, colorScheme: "light" },
};
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
const profile = mkdtempSync(join(tmpdir(), "semel-console-"));
// A browser that hangs fails its test, which says where it was.
const PATIENCE = 120_000;
let doing = "starting";
let since = Date.now();
function now(what) {
  doing = what;
  since = Date.now();
}
setInterval(() => {
  if (Date.now() - since < PATIENCE) return;
  console.log(JSON.stringify({ ...found, failure: `the browser hangs: ${doing}` }));
  process.exit(1);
}, 1000).unref();

const found = { violations: [], complaints: [], wide: [], dialogs: [], steps: [], missing: [], acting: [] };

function watch(page, where) {
  page.on("console", (message) => {
    if (message.type() === "error") found.complaints.push(`${where()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => found.complaints.push(`${where()}: ${error.message}`));
  page.on("dialog", async (dialog) => { found.dialogs.push(`${where()}: ${dialog.message()}`); await dialog.dismiss(); });
}

// axe runs by the protocol of the browser, so that the page's own policy stays in force.
async function judge(page, name, list = found.violations) {
  await page.evaluate(axe);
  const results = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  for (const violation of results.violations) {
    if (!["serious", "critical"].includes(violation.impact)) continue;
    list.push(`${name}: ${violation.id} (${violation.impact}) at ${violation.nodes.slice(0, 3).map((node) => node.target.join(" ")).join("; ")}`);
  }
}

async function look(context, variant) {
  const page = await context.newPage();
  let name = "";
  watch(page, () => `${variant} ${name}`);
  for (const wanted of orders.pages ?? []) {
    name = wanted.name;
    now(`${variant}: page ${name}`);
    const answer = await page.goto(orders.url + wanted.path, { waitUntil: "load" });
    if (answer.status() >= 400 && !wanted.refused) found.missing.push(`${name}: ${answer.status()}`);
    if (wanted.wait) await page.waitForSelector(wanted.wait, { timeout: 30000 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) found.wide.push(`${variant} ${name}: ${wide} px`);
    if (!orders.quick || variant === "light") await judge(page, `${variant} ${name}`);
    if (orders.out) {
      mkdirSync(orders.out, { recursive: true });
      await page.screenshot({ path: join(orders.out, `${name}-${variant}.png`), fullPage: wanted.full ?? true });
    }
  }
  await page.close();
}

// A page in the middle of a flow, once for each of its states: axe, and no wider than the screen, also on a phone.
const inspected = new Set();
async function inspect(page, variant) {
  // Without scripts, axe cannot run either.
  if (orders.script === false) return;
  const state = await page.evaluate(() => [location.pathname.replace(/[0-9a-f]{32}|_[0-9A-Za-z]{20,}/g, "…"), document.querySelector("h1")?.textContent,
    document.querySelectorAll(".note-box").length, document.querySelectorAll("main form").length].join(" "));
  if (inspected.has(`${variant} ${state}`)) return;
  inspected.add(`${variant} ${state}`);
  const usual = page.viewportSize();
  for (const { viewport } of new Set([VARIANTS[variant], VARIANTS.phone])) {
    await page.setViewportSize(viewport);
    const name = `${variant} ${viewport.width} px: ${state}`;
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) found.acting.push(`${name}: ${wide} px too wide`);
    await judge(page, name, found.acting);
  }
  await page.setViewportSize(usual);
}

// Each step is [verb, ...arguments].
async function play(context, variant) {
  const page = await context.newPage();
  watch(page, () => "steps");
  page.setDefaultTimeout(30000);
  for (const [verb, ...rest] of orders.steps ?? []) {
    const [one, two] = rest;
    now(`${verb} ${rest.join(" ")}`);
    if (verb === "goto") await page.goto(orders.url + one);
    else if (verb === "click") await page.getByRole("button", { name: one, exact: false }).or(page.getByRole("link", { name: one, exact: false })).first().click();
    else if (verb === "clickin") await page.locator("tr", { hasText: one }).getByRole("link", { name: two }).first().click();
    else if (verb === "fill") await page.getByLabel(one, { exact: false }).first().fill(two);
    else if (verb === "choose") await page.getByLabel(one, { exact: false }).first().check();
    else if (verb === "press") await page.keyboard.press(one);
    else if (verb === "type") await page.keyboard.type(one);
    else if (verb === "expect") await page.getByText(one, { exact: false }).first().waitFor();
    else if (verb === "absent") { if (await page.getByText(one, { exact: false }).count()) throw new Error(`${one} is on ${page.url()}`); }
    else if (verb === "gone") await page.getByText(one, { exact: false }).first().waitFor({ state: "detached" });
    else if (verb === "tell") writeFileSync(one, "");
    else if (verb === "sees") await page.waitForSelector(one);
    else if (verb === "mark") await page.waitForFunction((text) => document.querySelector("#live").textContent === text, one);
    else if (verb === "focused") await page.waitForFunction((selector) => document.activeElement.matches(selector), one);
    else if (verb === "inview") await page.waitForFunction((selector) => {
      const box = document.querySelector(selector).getBoundingClientRect();
      return box.left >= 0 && box.right <= innerWidth;
    }, one);
    else if (verb === "lower") await page.waitForFunction(([selector, most]) => document.querySelector(selector).offsetHeight < most, [one, two]);
    else if (verb === "url") await page.waitForURL((url) => url.pathname.startsWith(one));
    else if (verb === "shot") await page.screenshot({ path: join(orders.out, `${one}.png`) });
    else throw new Error(`unknown step ${verb}`);
    // What was waited for is there, so the page is.
    if (verb === "expect" || verb === "shot") await inspect(page, variant);
    found.steps.push(`${verb} ${rest.join(" ")}`);
  }
  await page.close();
}

let failure = null;
for (const variant of orders.variants ?? Object.keys(VARIANTS)) {
  now(`${variant}: starting Chromium`);
  const context = await chromium.launchPersistentContext(join(profile, variant), {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, args: flags, ...VARIANTS[variant],
    ...(orders.script === false ? { javaScriptEnabled: false } : {}),
  });
  try {
    if (orders.login) {
      const page = await context.newPage();
      now(`${variant}: logging in`);
      await page.goto(`${orders.url}/login`);
      await page.fill("#token", orders.login);
      await page.getByRole("button", { name: "Log in" }).click();
      // A page that is closed while it goes to another one can hang.
      await page.waitForURL((url) => url.pathname !== "/login");
      now(`${variant}: logged in`);
      await page.close();
    }
    await look(context, variant);
    await play(context, variant);
  } catch (error) {
    failure = `${variant}: ${error.message}`;
    const [page] = context.pages().slice(-1);
    if (page && orders.out) await page.screenshot({ path: join(orders.out, `failed-${variant}.png`) }).catch(() => {});
    if (page) failure += ` at ${page.url()}`;
  }
  now(`${variant}: closing`);
  await context.close();
  if (failure) break;
}
rmSync(profile, { recursive: true, force: true });
console.log(JSON.stringify({ ...found, failure }));

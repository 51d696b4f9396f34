// Live updates, keyboard shortcuts, the search box. Every page works without this file.
"use strict";

const search = document.querySelector("#search");
const liveMark = document.querySelector("#live");

// Replaces elements by the server's version of them, except those in which somebody works.
function swap(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  for (const fresh of parsed.querySelectorAll("[data-live]")) {
    const current = document.getElementById(fresh.id);
    if (!current || current.contains(document.activeElement) || current.outerHTML === fresh.outerHTML) continue;
    current.replaceWith(document.adoptNode(fresh));
  }
  tickAges();
}

// A search that reads the store in parts goes on while the page is open. Each part has what the parts before it found.
const pause = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });
async function searchOn() {
  let next = document.querySelector("#found")?.dataset.nextPart;
  while (next) {
    await pause(300);
    if (document.hidden) continue;
    let html;
    try {
      const answer = await fetch(next, { headers: { "x-semel-refresh": "1" }, redirect: "error" });
      if (!answer.ok) return;
      html = await answer.text();
    } catch {
      await pause(3000);
      continue;
    }
    // Somebody may be reading with the keyboard: the results wait for them.
    const found = document.querySelector("#found");
    while (found.contains(document.activeElement)) await pause(500);
    swap(html);
    next = document.querySelector("#found")?.dataset.nextPart;
  }
}

// The server names the page's own address where a page follows something that changes.
let refreshing = false;
async function refresh() {
  const url = document.body.dataset.refresh;
  if (!url || refreshing || document.hidden) return;
  refreshing = true;
  try {
    const answer = await fetch(url, { headers: { "x-semel-refresh": "1" }, redirect: "error" });
    if (answer.ok) swap(await answer.text());
    if (answer.status === 401) askToLogIn();
  } catch {
    // The next message of the stream tries again.
  } finally {
    refreshing = false;
  }
}

// The session has ended: the page keeps what it shows, and says so.
let ended = false;
function askToLogIn() {
  ended = true;
  if (stream) stream.close();
  const link = document.createElement("a");
  link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Log in again";
  liveMark.replaceChildren(link.cloneNode(true));
  offline.replaceChildren("Your session has ended; what you see is older. ", link);
  offline.hidden = false;
  document.body.classList.add("is-offline");
}

// The stream does not tell why it was refused. A request does.
async function connectAgain() {
  try {
    const answer = await fetch("/console/session", { headers: { "x-semel-refresh": "1" } });
    if (answer.status === 401) { askToLogIn(); return; }
  } catch {
    // The server is not back yet.
  }
  setTimeout(listen, 5000);
}

// Without the server the page is old, and says so. A message comes every three seconds; a lost network sends no error.
const offline = document.querySelector("#offline");
let heard = Date.now();
let isLost = false;
function showConnection() {
  if (ended) return;
  const silence = Date.now() - heard;
  const isOld = !document.hidden && silence > (isLost ? 5000 : 12000);
  if (offline.hidden !== isOld) return;
  offline.hidden = !isOld;
  document.body.classList.toggle("is-offline", isOld);
  // Without a zone: it is the time on the clock of whoever reads it.
  const since = new Date(heard).toLocaleTimeString("en-GB");
  offline.textContent = isOld ? `No connection to the server since ${since}; what you see is older.` : "";
}
function hear() {
  heard = Date.now();
  isLost = false;
  showConnection();
}

let stream = null;
function listen() {
  if (ended || document.hidden || (stream && stream.readyState !== EventSource.CLOSED)) return;
  stream = new EventSource("/console/live");
  stream.addEventListener("open", () => { liveMark.textContent = "live"; hear(); });
  stream.addEventListener("tick", (event) => { hear(); swap(event.data); refresh(); });
  // The browser connects again by itself, also after a restart of the server, unless the server refused: then we ask later.
  stream.addEventListener("error", () => {
    if (ended) return;
    liveMark.textContent = "reconnecting …";
    isLost = true;
    if (stream.readyState === EventSource.CLOSED) connectAgain();
  });
}
// A hidden page needs no stream.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { hear(); listen(); return; }
  if (stream) stream.close();
  if (!ended) liveMark.textContent = "";
});

// Ages and countdowns go on between two messages.
function words(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}
const skew = Number(document.body.dataset.now || 0) * 1000 - Date.now();
function tickAges() {
  const now = (Date.now() + skew) / 1000;
  for (const time of document.querySelectorAll("time[data-at]")) {
    const apart = now - Number(time.dataset.at);
    const text = apart >= 0 ? `${words(apart)} ago` : `in ${words(-apart)}`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// Two keys: g, then the first letter of a page.
const places = { o: "/", k: "/keys", i: "/keys?phase=in_doubt", d: "/dead-letters", r: "/replays", u: "/runs", e: "/events", t: "/targets", a: "/audit" };
// Single keys can be switched off: voice control and a slipped finger press them by accident.
const hasShortcuts = document.body.dataset.shortcuts !== "off";
let pending = false;
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && typing === search) { search.blur(); return; }
  if (!hasShortcuts || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); search.focus(); search.select(); return; }
  if (pending && places[event.key]) { location.href = places[event.key]; return; }
  pending = event.key === "g";
  if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("main table a.row")];
    const at = rows.indexOf(document.activeElement);
    const next = rows[event.key === "j" ? at + 1 : Math.max(at - 1, 0)];
    if (next) next.focus();
  }
});

// What is approved is what was shown. After an edit of the form that made the preview, it must be shown again first.
document.addEventListener("input", (event) => {
  const preview = document.getElementById(event.target.form?.dataset.preview);
  if (!preview) return;
  for (const button of preview.querySelectorAll("button")) button.disabled = true;
  preview.querySelector(".edited").hidden = false;
});

// One box selects all rows of a list.
document.addEventListener("change", (event) => {
  if (event.target.dataset.all === undefined) return;
  for (const box of event.target.form.querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});

// On a narrow screen the navigation scrolls: the current page is in its middle.
const menu = document.querySelector(".nav");
const current = menu?.querySelector("[aria-current]");
if (current) menu.scrollLeft = current.offsetLeft - menu.offsetLeft - (menu.clientWidth - current.offsetWidth) / 2;

if (search) {
  listen();
  searchOn();
  setInterval(() => { tickAges(); showConnection(); }, 1000);
}

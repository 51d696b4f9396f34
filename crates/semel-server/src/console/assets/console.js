// Live updates, keyboard shortcuts, the search box. Every page works without this file.
"use strict";

const search = document.querySelector("#search");
const liveMark = document.querySelector("#live");

// Replaces an element by the server's version of it, unless somebody works in it.
function swap(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  for (const fresh of parsed.querySelectorAll("[data-live]")) {
    const current = document.getElementById(fresh.id);
    if (!current || current.contains(document.activeElement) || current.outerHTML === fresh.outerHTML) continue;
    current.replaceWith(document.adoptNode(fresh));
  }
  tickAges();
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
  liveMark.replaceChildren(link);
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

let stream = null;
function listen() {
  if (ended || document.hidden || (stream && stream.readyState !== EventSource.CLOSED)) return;
  stream = new EventSource("/console/live");
  stream.addEventListener("open", () => { liveMark.textContent = "live"; });
  stream.addEventListener("tick", (event) => { swap(event.data); refresh(); });
  // The browser connects again by itself, also after a restart of the server, unless the server refused: then we ask later.
  stream.addEventListener("error", () => {
    if (ended) return;
    liveMark.textContent = "reconnecting …";
    if (stream.readyState === EventSource.CLOSED) connectAgain();
  });
}
// A hidden page needs no stream.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { listen(); return; }
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
let pending = false;
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && typing === search) { search.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
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

// One box selects all rows of a list.
document.addEventListener("change", (event) => {
  if (event.target.dataset.all === undefined) return;
  for (const box of event.target.form.querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});

if (search) {
  listen();
  setInterval(tickAges, 1000);
}

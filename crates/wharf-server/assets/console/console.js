// The console's script: live updates, local times, one row more. Every page works without it.
"use strict";

// Events come in bursts; one look after a burst is enough.
const SETTLE_MS = 150;
const LONGEST_PAUSE_MS = 10000;
// How long to wait before a stream that the server refused is opened again.
const RETRY_MS = 3000;

const live = document.getElementById("live");
const root = () => live.querySelector("[data-fragment]");

// --- times -------------------------------------------------------------------------------------

function lasted(seconds) {
  if (seconds < 1) return "under 1 s";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}

function showTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    time.title = time.dateTime;
    time.textContent = "clock" in time.dataset
      ? at.toLocaleTimeString(undefined, { hour12: false })
      : at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });
  }
}

function tick() {
  for (const span of live.querySelectorAll("[data-since]")) {
    const seconds = Math.floor((Date.now() - new Date(span.dataset.since)) / 1000);
    span.textContent = lasted(Math.max(0, seconds));
  }
}

// --- live updates ------------------------------------------------------------------------------

// What a reader did to the page (opened, scrolled, focused) outlives the change of the page.
function remember() {
  const log = document.getElementById("log-lines");
  const details = [...live.querySelectorAll("details[id]")].map((one) => [one.id, one.open]);
  const atEnd = !log || log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  return { details, atEnd, top: log ? log.scrollTop : 0, focus: document.activeElement?.id };
}

function restore(kept) {
  for (const [id, open] of kept.details) {
    const one = document.getElementById(id);
    if (one) one.open = open;
  }
  showLogEnd(kept.atEnd ? undefined : kept.top);
  if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
}

function showLogEnd(top) {
  const log = document.getElementById("log-lines");
  if (log) log.scrollTop = top ?? log.scrollHeight;
}

function announce() {
  const place = document.getElementById("announce");
  const text = root()?.dataset.announce ?? "";
  if (place.textContent !== text) place.textContent = text;
}

let shown = "";

async function refresh() {
  const from = root();
  if (!from) return;
  const answer = await fetch(from.dataset.fragment, { redirect: "manual", cache: "no-store" });
  // The session ended, or the cluster is gone: the page itself knows where to go.
  if (answer.type === "opaqueredirect" || answer.status === 404) return location.reload();
  if (!answer.ok) throw new Error(`${answer.status}`);
  const html = await answer.text();
  document.getElementById("stale").hidden = true;
  if (html === shown) return;
  shown = html;
  const kept = remember();
  live.innerHTML = html;
  showTimes(live);
  restore(kept);
  announce();
}

let timer;
let busy = false;
let again = false;
let pause = SETTLE_MS;

function soon() {
  if (busy) again = true;
  else timer ??= setTimeout(look, pause);
}

async function look() {
  timer = undefined;
  busy = true;
  const begun = performance.now();
  try {
    await refresh();
  } catch {
    document.getElementById("stale").hidden = false;
  }
  // However much happens, most of the time is left to the reader and to the server.
  pause = Math.min(Math.max(SETTLE_MS, 10 * (performance.now() - begun)), LONGEST_PAUSE_MS);
  busy = false;
  if (again) {
    again = false;
    soon();
  }
}

let stream;
let retry;
let clock;

// Only a page that is looked at listens: browsers allow few connections to one server.
function listen() {
  const from = root();
  if (!from || stream || document.hidden) return;
  stream = new EventSource(from.dataset.events);
  // What happened before the stream was open was told to nobody.
  stream.onopen = soon;
  // What the cluster itself says changes without an event of the server.
  if (from.dataset.every) clock ??= setInterval(soon, 1000 * from.dataset.every);
  for (const type of ["cluster", "operation", "health", "drain", "repair"]) {
    for (const what of ["created", "updated", "deleted", "removed"]) {
      stream.addEventListener(`${type}.${what}`, soon);
    }
  }
  stream.addEventListener("lost", soon);
  stream.onerror = () => {
    // A look tells whether the server is away, the session ended, or only the stream did.
    soon();
    if (stream?.readyState !== EventSource.CLOSED) return;
    stop();
    retry = setTimeout(listen, RETRY_MS);
  };
}

function stop() {
  clearTimeout(retry);
  clearInterval(clock);
  clock = undefined;
  stream?.close();
  stream = undefined;
}

// --- the form ----------------------------------------------------------------------------------

function prepareRows() {
  const button = document.getElementById("add-row");
  if (!button) return;
  const rows = document.getElementById("rows");
  const template = document.getElementById("row");
  button.hidden = false;
  button.addEventListener("click", () => {
    const number = rows.querySelectorAll(".row").length;
    const holder = document.createElement("div");
    holder.innerHTML = template.innerHTML.replaceAll("ROW", number);
    const row = holder.firstElementChild;
    rows.append(row);
    row.querySelector("input").focus();
  });
}

// --- start -------------------------------------------------------------------------------------

showTimes(document);
showLogEnd();
prepareRows();
document.getElementById("faults")?.focus();
setInterval(tick, 1000);
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
addEventListener("pagehide", stop);
addEventListener("pageshow", listen);
listen();

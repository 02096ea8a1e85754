// The page reads without this script. It adds live updates, the scrubber, keys and copying.
const main = document.getElementById("main");
const live = document.getElementById("live");
const help = document.getElementById("help");
let worker = null;
let stream = null;
let seen = "";
let waiting = null;
let missed = false;
let lost = false;
let pace = 300;
let refreshed = 0;
let swapping = 0;

const typing = () => document.activeElement?.matches("input:not([type=range]), textarea, select");
const filled = () =>
  [...main.querySelectorAll("input[type=text], textarea")].some((one) => one.value !== one.defaultValue);

// Replace the content with the page at an address; the newest request wins.
async function show(address, { push = false } = {}) {
  const mine = ++swapping;
  const answer = await fetch(address, { headers: { accept: "text/html" } });
  if (!answer.ok || mine !== swapping) return answer.ok;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = next.getElementById("main");
  if (!fresh || mine !== swapping) return false;
  const focus = document.activeElement?.closest("#main a.row, #main #scrub");
  const kept = focus?.id || focus?.getAttribute("href");
  const scroll = main.querySelector(".steps")?.scrollTop ?? 0;
  const opened = main.querySelector("details")?.open;
  main.replaceChildren(...fresh.childNodes);
  main.dataset.after = fresh.dataset.after ?? "";
  document.title = next.title;
  if (push) history.replaceState(null, "", address);
  const steps = main.querySelector(".steps");
  if (steps) steps.scrollTop = scroll;
  const details = main.querySelector("details");
  if (details && opened !== undefined) details.open = opened;
  const again = kept && ([...main.querySelectorAll("a.row")].find((a) => a.getAttribute("href") === kept) || document.getElementById(kept));
  again?.focus({ preventScroll: true });
  enhance();
  return true;
}

function enhance() {
  main.querySelector(".steps [aria-current]")?.scrollIntoView({ block: "nearest" });
  for (const button of main.querySelectorAll(".copy")) button.hidden = false;
  for (const button of main.querySelectorAll(".scrub .plain")) button.hidden = true;
}

// All tabs of a browser share one connection; without SharedWorker a tab has its own while visible.
function heard({ state, record, reset, last, count, clients }) {
  if (clients) pace = 300 + 25 * Math.max(count ?? 1, clients);
  if (state === "open") live.textContent = "Live.";
  if (state === "lost") live.textContent = "Connecting again…";
  const again = lost && state === "open";
  if (state) lost = state === "lost";
  if (again || reset || (record ? concerns(record) : last && last !== main.dataset.after)) stale();
}

function concerns(record) {
  const run = main.dataset.run;
  return !run || record.run_id === run || record.run_id.startsWith(`${run}.`);
}

// At once after a pause, then seldom: many tabs and browsers must not keep the server busy.
function stale() {
  if (waiting) return;
  const pause = Math.max(50, refreshed + pace - Date.now());
  waiting = setTimeout(() => {
    waiting = null;
    if (document.hidden) missed = true;
    else refresh();
  }, pause);
}

function connect() {
  if (!main.dataset.live) return;
  const address = new URL(main.dataset.live, location.href).href;
  if (window.SharedWorker) {
    worker ??= new SharedWorker(new URL("live.js", import.meta.url)).port;
    worker.onmessage = ({ data }) => heard(data);
    worker.postMessage({ address, after: main.dataset.after });
  } else if (document.hidden) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    stream = new EventSource(`${address}?after=${encodeURIComponent(seen || main.dataset.after)}`);
    stream.onopen = () => heard({ state: "open" });
    stream.onerror = () => heard({ state: "lost" });
    stream.addEventListener("record", (event) => {
      seen = event.lastEventId;
      heard({ record: JSON.parse(event.data) });
    });
    stream.addEventListener("clients", (event) => heard({ clients: Number(event.data) }));
    stream.addEventListener("reset", (event) => {
      seen = event.lastEventId;
      heard({ reset: true });
    });
  }
}

function refresh() {
  missed = false;
  refreshed = Date.now();
  if (typing() || filled()) live.textContent = "There is news: reload to see it.";
  else {
    show(location.href)
      .catch(() => {})
      .finally(() => (refreshed = Date.now()));
  }
}

function move(by) {
  const rows = [...main.querySelectorAll("a.row")];
  if (!rows.length) return;
  let at = rows.indexOf(document.activeElement);
  if (at < 0) at = rows.findIndex((row) => row.hasAttribute("aria-current"));
  const next = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
  next.focus();
  if (next.closest(".steps")) show(next.href, { push: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (typing()) {
    if (event.key === "Escape") document.activeElement.blur();
    return;
  }
  const home = document.querySelector(".brand").href;
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    "/": () => {
      const search = document.getElementById("search");
      if (search) search.focus();
      else location.assign(home);
    },
    "?": () => help.showModal(),
    g: () => location.assign(home),
    w: () => location.assign(document.querySelector('nav a[href$="/waiting"]').href),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

document.addEventListener("click", (event) => {
  const copy = event.target.closest(".copy");
  if (copy) {
    navigator.clipboard?.writeText(copy.dataset.copy).then(() => (copy.textContent = "Copied"));
    return;
  }
  const step = event.target.closest(".steps a.row, .tabs a");
  if (step && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    history.pushState(null, "", step.href);
    show(step.href);
  }
});

document.addEventListener("input", (event) => {
  if (event.target.id !== "scrub") return;
  const form = event.target.form;
  form.querySelector("output").value = event.target.value;
  show(`${form.action}?${new URLSearchParams(new FormData(form))}`, { push: true });
});

document.getElementById("keys").hidden = false;
document.getElementById("keys").addEventListener("click", () => help.showModal());
addEventListener("popstate", () => show(location.href));
document.addEventListener("visibilitychange", () => {
  if (!window.SharedWorker) connect();
  if (!document.hidden && missed) refresh();
});
addEventListener("pagehide", () => worker?.postMessage({ leaves: true }));
addEventListener("pageshow", (event) => event.persisted && connect());
enhance();
connect();

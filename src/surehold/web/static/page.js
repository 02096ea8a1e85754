// The page reads without this script. It adds live updates, the scrubber, keys and copying.
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const live = /** @type {HTMLElement} */ (document.getElementById("live"));
const help = /** @type {HTMLDialogElement} */ (document.getElementById("help"));
const home = /** @type {HTMLAnchorElement} */ (document.querySelector(".brand")).href;
/** @type {MessagePort | null} */
let worker = null;
/** @type {EventSource | null} */
let stream = null;
let seen = "";
/** @type {ReturnType<typeof setTimeout> | null} */
let waiting = null;
let missed = false;
let lost = false;
let pace = 300;
let refreshed = 0;
let swapping = 0;

const typing = () => document.activeElement?.matches("input:not([type=range]), textarea, select");
/** @returns {NodeListOf<HTMLInputElement>} */
const inputs = () => main.querySelectorAll("input[type=text], textarea");
const filled = () => [...inputs()].some((one) => one.value !== one.defaultValue);
/** @returns {HTMLAnchorElement[]} */
const rows = () => [...main.querySelectorAll(/** @type {"a"} */ ("a.row"))];

/**
 * Replace the content with the page at an address; the newest request wins.
 * @param {string} address
 * @param {{ push?: boolean }} options
 */
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
  if (kept) {
    const again = rows().find((row) => row.getAttribute("href") === kept);
    (again ?? document.getElementById(kept))?.focus({ preventScroll: true });
  }
  enhance();
  return true;
}

function enhance() {
  main.querySelector(".steps [aria-current]")?.scrollIntoView({ block: "nearest" });
  for (const button of main.querySelectorAll(".copy")) button.toggleAttribute("hidden", false);
  for (const button of main.querySelectorAll(".scrub .plain")) button.toggleAttribute("hidden", true);
}

/**
 * All tabs of a browser share one connection; without SharedWorker a tab has its own while visible.
 * @param {{ state?: string, record?: { run_id: string }, reset?: boolean, last?: string,
 *   count?: number, clients?: number }} message
 */
function heard({ state, record, reset, last, count, clients }) {
  if (clients) pace = 300 + 25 * Math.max(count ?? 1, clients);
  if (state === "open") live.textContent = "Live.";
  if (state === "lost") live.textContent = "Connecting again…";
  const again = lost && state === "open";
  if (state) lost = state === "lost";
  if (again || reset || (record ? concerns(record) : last && last !== main.dataset.after)) stale();
}

/** @param {{ run_id: string }} record */
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
    const after = seen || main.dataset.after || "";
    stream = new EventSource(`${address}?after=${encodeURIComponent(after)}`);
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

/** @param {number} by */
function move(by) {
  const all = rows();
  if (!all.length) return;
  let at = all.findIndex((row) => row === document.activeElement);
  if (at < 0) at = all.findIndex((row) => row.hasAttribute("aria-current"));
  const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
  next.focus();
  if (next.closest(".steps")) show(next.href, { push: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (typing()) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (document.activeElement).blur();
    return;
  }
  /** @type {Record<string, () => void>} */
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
    w: () => /** @type {HTMLElement} */ (document.querySelector('nav a[href$="/waiting"]')).click(),
  };
  const at = document.activeElement;
  if (at?.matches("a.row")) {
    keys.ArrowDown = keys.j;
    keys.ArrowUp = keys.k;
  }
  if (main.querySelector(".steps") && !at?.matches("input, .scroll, pre")) {
    keys.ArrowLeft = keys.j;
    keys.ArrowRight = keys.k;
  }
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  /** @type {HTMLElement | null} */
  const copy = target.closest(".copy");
  if (copy) {
    navigator.clipboard?.writeText(copy.dataset.copy ?? "").then(() => (copy.textContent = "Copied"));
    return;
  }
  /** @type {HTMLAnchorElement | null} */
  const step = target.closest(".steps a.row, .tabs a");
  if (step && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    history.pushState(null, "", step.href);
    show(step.href);
  }
});

document.addEventListener("input", (event) => {
  const slider = /** @type {HTMLInputElement} */ (event.target);
  const form = slider.form;
  if (slider.id !== "scrub" || !form) return;
  /** @type {HTMLOutputElement} */ (form.querySelector("output")).value = slider.value;
  const fields = /** @type {[string, string][]} */ ([...new FormData(form)]);
  show(`${form.action}?${new URLSearchParams(fields)}`, { push: true });
});

const button = /** @type {HTMLElement} */ (document.getElementById("keys"));
button.hidden = false;
button.addEventListener("click", () => help.showModal());
addEventListener("popstate", () => show(location.href));
document.addEventListener("visibilitychange", () => {
  if (!window.SharedWorker) connect();
  if (!document.hidden && missed) refresh();
});
addEventListener("pagehide", () => worker?.postMessage({ leaves: true }));
addEventListener("pageshow", (event) => event.persisted && connect());
enhance();
connect();

// The page reads without this script. It adds live updates, the strip, keys, times and copying.
import { morph } from "./morph.js";
import { attach } from "./strip.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const live = /** @type {HTMLElement} */ (document.getElementById("live"));
const said = /** @type {HTMLElement} */ (document.getElementById("said"));
const trouble = /** @type {HTMLElement} */ (document.getElementById("trouble"));
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
let lost = 0;
let pressed = false;
let pace = 300;
let refreshed = 0;
let swapping = 0;
let going = 0;

const typing = () => document.activeElement?.matches("input, textarea, select");
/** @returns {HTMLAnchorElement[]} */
const rows = () => [...main.querySelectorAll(/** @type {"a"} */ ("a.row"))];

/**
 * True for what a live update must not touch: selected text, and the field that is being edited;
 * neither goes, nor what they are in.
 * @param {Node} node
 */
function isHeld(node, goes = false) {
  const selection = getSelection();
  if (selection && !selection.isCollapsed && (goes || node.nodeType === Node.TEXT_NODE)) {
    if (selection.containsNode(node, true)) return true;
  }
  const focused = /** @type {HTMLInputElement | null} */ (document.activeElement);
  if (!focused?.matches("input, textarea, select")) return false;
  return node === focused || (goes && node.contains(focused) && focused.value !== focused.defaultValue);
}

/**
 * Show the page at an address; the newest request wins, but news wait for what was clicked. An
 * address that cannot be shown is not written into the browser's own.
 * @param {string} address
 * @param {{ push?: "push" | "replace", news?: boolean }} options  news: only what has changed here
 */
async function show(address, { push, news = false } = {}) {
  if (news && going) {
    missed = true;
    return;
  }
  const mine = ++swapping;
  if (!news) going = mine;
  const slow = setTimeout(() => document.body.classList.add("busy"), 200);
  try {
    const answer = await fetch(address, { headers: { accept: "text/html" } });
    const text = await answer.text();
    if (mine !== swapping) return;
    if (!answer.ok) return problem(answer.status);
    const next = new DOMParser().parseFromString(text, "text/html");
    const fresh = next.getElementById("main");
    if (!fresh) return;
    if (news && pressed) {
      missed = true; // what is under a pressed pointer stays until it is released
      return;
    }
    patch(fresh, next, news);
    if (push === "push") history.pushState(null, "", address);
    if (push === "replace") history.replaceState(null, "", address);
    if (!news) settle();
    problem(0);
  } catch {
    problem(-1);
  } finally {
    clearTimeout(slow);
    if (mine === swapping) document.body.classList.remove("busy");
    if (mine === going) {
      going = 0;
      if (missed && !pressed && !document.hidden) refresh();
    }
  }
}

/**
 * @param {HTMLElement} fresh
 * @param {Document} next
 * @param {boolean} news
 */
function patch(fresh, next, news) {
  const lists = [...main.querySelectorAll(".steps, .chat")].map((list) => {
    const top = list.getBoundingClientRect().top;
    const row = [...list.querySelectorAll("[data-key]")].find(
      (one) => one.getBoundingClientRect().bottom > top,
    );
    return { list, row, before: row?.getBoundingClientRect().top ?? 0, scrolled: list.scrollTop > 0 };
  });
  morph(main, fresh, isHeld);
  for (const name of ["bands", "nav"]) {
    const [old, made] = [document.getElementById(name), next.getElementById(name)];
    if (old && made) morph(old, made, isHeld);
  }
  for (const { list, row, before, scrolled } of lists) {
    if (news && scrolled && row?.isConnected) list.scrollTop += row.getBoundingClientRect().top - before;
  }
  document.title = next.title;
  tick();
}

/** Bring the chosen step, tab and page, and the newest message, into sight inside their lists. */
function settle() {
  for (const one of document.querySelectorAll(".tabs [aria-current], nav [aria-current]")) {
    const row = /** @type {HTMLElement} */ (one.parentElement);
    const [inner, outer] = [one.getBoundingClientRect(), row.getBoundingClientRect()];
    if (inner.left < outer.left || inner.right > outer.right - 28) {
      row.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
    }
  }
  const found = { ".steps": "[aria-current]", ".chat.long": ":scope > .fresh, :scope > :last-child" };
  for (const [list, one] of Object.entries(found)) {
    const box = main.querySelector(list);
    const row = box?.querySelector(one)?.getBoundingClientRect();
    if (!box || !row) continue;
    const view = box.getBoundingClientRect();
    if (row.top < view.top || row.bottom > view.bottom) {
      box.scrollTop += row.top - view.top - Math.max(0, (view.height - row.height) / 2);
    }
  }
}

/** Bring the detail into sight, which is above the steps where the window is narrow. */
function reveal() {
  const detail = main.querySelector(".detail");
  const top = detail?.getBoundingClientRect().top ?? 0;
  if (top < 0 || top > innerHeight / 2) detail?.scrollIntoView({ block: "start" });
}

const PROBLEMS = {
  "-1": "The server does not answer. What you see may be old, and actions will fail.",
  401: "Not signed in any more. Open a new link: surehold ui prints one.",
  403: "Not signed in any more. Open a new link: surehold ui prints one.",
};

/**
 * Say where the eye is what hinders this page; 0: nothing any more.
 * @param {number} status
 */
function problem(status) {
  const text = PROBLEMS[/** @type {keyof typeof PROBLEMS} */ (`${status}`)];
  trouble.textContent = status ? (text ?? `This cannot be shown: the server answered ${status}.`) : "";
  document.body.classList.toggle("offline", status !== 0 && !!text);
}

/**
 * All tabs of a browser share one connection; without SharedWorker a tab has its own while visible.
 * @param {{ state?: string, record?: { run_id: string }, reset?: boolean, last?: string,
 *   count?: number, clients?: number }} message
 */
function heard({ state, record, reset, last, count, clients }) {
  if (clients) pace = 300 + 25 * Math.max(count ?? 1, clients);
  const again = lost && state === "open";
  if (state === "open") {
    live.textContent = "Live.";
    lost = 0;
    problem(0);
  } else if (state === "lost" && !lost) {
    lost = Date.now();
    fetch(location.href, { method: "HEAD" }).then(
      (answer) => lost && problem(answer.ok ? 0 : answer.status),
      () => lost && problem(-1),
    );
  }
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
    if (document.hidden || pressed) missed = true;
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
  show(location.href, { news: true }).finally(() => (refreshed = Date.now()));
}

/** @param {number} by */
function move(by) {
  const all = rows();
  if (!all.length) return;
  let at = all.findIndex((row) => row === document.activeElement);
  if (at < 0) at = all.findIndex((row) => row.hasAttribute("aria-current"));
  const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
  if (document.activeElement?.id !== "strip") next.focus({ preventScroll: !!next.closest(".steps") });
  if (next.closest(".steps")) show(next.href, { push: "replace" });
}

// Times are written in UTC; here they are in the reader's zone, and ages go on.
function tick() {
  for (const time of main.querySelectorAll("time")) {
    const moment = new Date(time.dateTime);
    const form = time.dataset.form;
    const utc = `${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    if (time.title !== utc) time.title = utc;
    const text = form === "time" ? moment.toLocaleTimeString("sv") : form === "full" ? moment.toLocaleString("sv") : ago(moment);
    if (text && time.textContent !== text && !isHeld(/** @type {Node} */ (time.firstChild ?? time))) time.textContent = text;
  }
  if (lost) {
    const seconds = Math.round((Date.now() - lost) / 1000);
    live.textContent = seconds > 1 ? `Connecting again… ${seconds} s` : "Connecting again…";
  }
}

/** @param {Date} moment */
function ago(moment) {
  const seconds = Math.max(0, (Date.now() - moment.getTime()) / 1000);
  if (seconds >= 30 * 86400) return "";
  if (seconds >= 172800) return `${Math.floor(seconds / 86400)} d ago`;
  if (seconds >= 7200) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds >= 120) return `${Math.floor(seconds / 60)} min ago`;
  return `${Math.floor(seconds)} s ago`;
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
    navigator.clipboard?.writeText(copy.dataset.copy ?? "").then(() => {
      const label = copy.textContent;
      copy.textContent = "Copied";
      said.textContent = "Copied to the clipboard.";
      setTimeout(() => {
        copy.textContent = label === "Copied" ? "Copy" : label;
        said.textContent = "";
      }, 2000);
    });
    return;
  }
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  /** @type {HTMLAnchorElement | null} */
  const step = target.closest(".steps a.row, .tabs a, a.inpage");
  const row = target.closest("tbody tr")?.querySelector("a.row");
  if (step) {
    event.preventDefault();
    show(step.href, { push: "push" }).then(reveal);
  } else if (row && !target.closest("a, button, input, label") && getSelection()?.isCollapsed) {
    /** @type {HTMLElement} */ (row).click();
  }
});

// An edit names what the button will do.
document.addEventListener("input", (event) => {
  const form = /** @type {HTMLInputElement} */ (event.target).form;
  const button = form?.querySelector("button[data-edited]");
  if (!form || !button) return;
  const edited = [...form.querySelectorAll("input[type=text], input[type=number], textarea, select")].filter(
    (one) =>
      one instanceof HTMLSelectElement
        ? ![...one.options].every((option) => option.selected === option.defaultSelected)
        : /** @type {HTMLInputElement} */ (one).value !== /** @type {HTMLInputElement} */ (one).defaultValue,
  ).length;
  const words = /** @type {HTMLElement} */ (button).dataset;
  button.textContent = edited
    ? `${words.edited} ${edited} ${edited === 1 ? "change" : "changes"}…`
    : (words.plain ?? "");
});

document.addEventListener("pointerdown", () => (pressed = true), true);
for (const name of ["pointerup", "pointercancel", "dragend"]) {
  document.addEventListener(name, () => {
    pressed = false;
    // After the click that this ends, which belongs to what was pressed.
    setTimeout(() => missed && !pressed && !document.hidden && refresh(), 50);
  }, true);
}

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
document.documentElement.classList.add("js");
/** @type {HTMLElement} */ (document.getElementById("zone")).textContent =
  `Times are in your zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
attach(main, (address) => show(address, { push: "replace" }));
tick();
setInterval(tick, 1000);
settle();
connect();

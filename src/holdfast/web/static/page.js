// The page reads without this script. It adds live updates, the scrubber, keys and copying.
const main = document.getElementById("main");
const live = document.getElementById("live");
const help = document.getElementById("help");
let stream = null;
let seen = "";
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
  main.dataset.live = fresh.dataset.live ?? "";
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

// A hidden tab holds no connection: browsers allow six to one server.
function connect() {
  stream?.close();
  stream = null;
  if (!main.dataset.live || document.hidden) return;
  const address = new URL(main.dataset.live, location.href);
  if (seen) address.searchParams.set("after", seen);
  stream = new EventSource(address);
  stream.onopen = () => (live.textContent = "Live.");
  stream.onerror = () => (live.textContent = "Connecting again…");
  let waiting = null;
  stream.addEventListener("record", (event) => {
    seen = event.lastEventId;
    clearTimeout(waiting);
    waiting = setTimeout(refresh, 100);
  });
}

function refresh() {
  if (typing() || filled()) live.textContent = "There is news: reload to see it.";
  else show(location.href).catch(() => {});
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
document.addEventListener("visibilitychange", connect);
enhance();
connect();

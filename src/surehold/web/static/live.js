// One connection for all tabs of a browser: a SharedWorker that tells each tab of new records.
/** @type {Set<MessagePort>} */
const tabs = new Set();
/** @type {EventSource | null} */
let source = null;
let state = "";
let last = "";
let clients = 1;

/** @param {object} message */
function tell(message) {
  for (const tab of tabs) tab.postMessage(message);
}

/** @param {string} address */
function connect(address) {
  const from = new URL(address, location.href);
  if (last) from.searchParams.set("after", last);
  source = new EventSource(from);
  source.onopen = () => tell({ state: (state = "open") });
  source.onerror = () => {
    tell({ state: (state = "lost") });
    if (source?.readyState !== EventSource.CLOSED) return; // it connects again by itself
    source = null;
    setTimeout(() => tabs.size && !source && connect(address), 2000);
  };
  source.addEventListener("record", (event) => {
    last = event.lastEventId;
    tell({ record: JSON.parse(event.data), last });
  });
  source.addEventListener("clients", (event) => {
    clients = Number(event.data);
    tell({ count: tabs.size, clients });
  });
  source.addEventListener("reset", (event) => {
    last = event.lastEventId;
    tell({ reset: true, last });
  });
}

addEventListener("connect", (event) => {
  const tab = /** @type {MessageEvent} */ (event).ports[0];
  tabs.add(tab);
  tab.onmessage = ({ data }) => {
    if (data.leaves) {
      tabs.delete(tab);
      tell({ count: tabs.size, clients });
      if (tabs.size) return;
      source?.close();
      source = null;
      return;
    }
    tabs.add(tab);
    if (!source) {
      last = last || data.after;
      connect(data.address);
    }
    tab.postMessage({ state, last });
    tell({ count: tabs.size, clients });
  };
});

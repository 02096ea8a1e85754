// The strip: a run's steps over time. It is dragged, walked with keys, and replayed.

/** @param {Element} strip @returns {SVGRectElement[]} */
const cellsOf = (strip) => [...strip.querySelectorAll(/** @type {"rect"} */ ("rect.cell"))];

/**
 * The cell at a place, by the numbers it is drawn with.
 * @param {Element} strip
 * @param {number} x
 */
function cellAt(strip, x) {
  const box = /** @type {Element} */ (strip.querySelector("svg")).getBoundingClientRect();
  const place = ((x - box.left) / box.width) * 1000;
  const cells = cellsOf(strip);
  let [low, high] = [0, cells.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (cells[middle].x.baseVal.value <= place) low = middle;
    else high = middle - 1;
  }
  return cells[low];
}

/**
 * @param {HTMLElement} main
 * @param {(address: string) => Promise<void>} show
 */
export function attach(main, show) {
  const card = /** @type {HTMLElement} */ (document.getElementById("card"));
  /** @type {{ strip: HTMLElement, cell: SVGRectElement } | null} */
  let drag = null;
  let showing = false;
  /** @type {string | null} */
  let next = null;
  /** @type {ReturnType<typeof setInterval> | null} */
  let replay = null;

  /** One request at a time, and always the newest place. @param {string} address */
  async function go(address) {
    next = address;
    if (showing) return;
    showing = true;
    while (next) {
      const wanted = next;
      next = null;
      await show(wanted);
      if (drag) choose(drag.strip, drag.cell); // an answer for a place that was passed
    }
    showing = false;
  }

  /** @param {HTMLElement} strip @param {SVGRectElement} cell */
  function choose(strip, cell) {
    for (const one of cellsOf(strip)) one.classList.toggle("chosen", one === cell);
    strip.setAttribute("aria-valuenow", cell.dataset.step ?? "");
    strip.setAttribute("aria-valuetext", cell.dataset.t ?? "");
    const output = main.querySelector(".scrub output");
    if (output) output.textContent = cell.dataset.step ?? "";
  }

  /** @param {HTMLElement} strip @param {SVGRectElement} cell */
  function select(strip, cell) {
    choose(strip, cell);
    go(`${strip.dataset.href}${cell.dataset.key}`);
  }

  main.addEventListener("pointerdown", (event) => {
    /** @type {HTMLElement | null} */
    const strip = /** @type {Element} */ (event.target).closest(".strip");
    if (!strip || event.button) return;
    event.preventDefault();
    strip.focus({ preventScroll: true });
    strip.setPointerCapture(event.pointerId);
    drag = { strip, cell: cellAt(strip, event.clientX) };
    select(strip, drag.cell);
  });
  main.addEventListener("pointermove", (event) => {
    const strip = drag?.strip ?? /** @type {Element} */ (event.target).closest?.(".strip");
    if (!(strip instanceof HTMLElement)) {
      card.hidden = true;
      return;
    }
    const cell = cellAt(strip, event.clientX);
    card.textContent = cell.dataset.t ?? "";
    card.hidden = false;
    card.style.left = `${Math.min(event.clientX + 12, innerWidth - card.offsetWidth - 8)}px`;
    card.style.top = `${strip.getBoundingClientRect().bottom + 6}px`;
    if (drag && cell !== drag.cell) {
      drag.cell = cell;
      select(drag.strip, cell);
    }
  });
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
    main.addEventListener(name, () => (drag = null));
  }
  main.addEventListener("pointerleave", () => (card.hidden = true));
  addEventListener("scroll", () => (card.hidden = true), { passive: true });

  main.addEventListener("keydown", (event) => {
    const strip = /** @type {HTMLElement} */ (event.target);
    if (!strip.matches(".strip") || event.ctrlKey || event.metaKey || event.altKey) return;
    const cells = cellsOf(strip);
    const at = cells.findIndex((one) => one.classList.contains("chosen"));
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at + 10, PageDown: at - 10, Home: 0, End: cells.length - 1 };
    const to = places[/** @type {keyof typeof places} */ (event.key)];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    select(strip, cells[Math.max(0, Math.min(cells.length - 1, to))]);
  });

  main.addEventListener("click", (event) => {
    if (!(/** @type {Element} */ (event.target).closest("#replay"))) return;
    const strip = /** @type {HTMLElement} */ (main.querySelector(".strip"));
    if (replay) clearInterval(replay);
    else if (cellsOf(strip).at(-1)?.classList.contains("chosen")) select(strip, cellsOf(strip)[0]);
    replay = replay
      ? null
      : setInterval(() => {
          const now = /** @type {HTMLElement | null} */ (main.querySelector(".strip"));
          const cells = now ? cellsOf(now) : [];
          const at = cells.findIndex((one) => one.classList.contains("chosen"));
          if (now && at >= 0 && at < cells.length - 1) select(now, cells[at + 1]);
          else if (replay) {
            clearInterval(replay);
            replay = null;
          }
        }, 250);
  });
}

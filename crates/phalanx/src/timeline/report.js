// Puts a report on the page: totals here, the rest in the parts before. Data of the page is in the element `data`.

/** Which movement and which time people look at; parts of the page tell one another through it. */
class Focus {
  hovered = null;
  pinned = null;
  #onMovement = [];
  #onTime = [];

  onMovement(listener) {
    this.#onMovement.push(listener);
  }

  onTime(listener) {
    this.#onTime.push(listener);
  }

  hover(movement) {
    if (movement === this.hovered) return;
    this.hovered = movement;
    for (const listener of this.#onMovement) listener();
  }

  pin(movement) {
    this.pinned = movement;
    for (const listener of this.#onMovement) listener();
  }

  pointAt(at) {
    for (const listener of this.#onTime) listener(at);
  }
}

function drawTotals({ before, after }) {
  const entries = [
    ["Step", "step", time, TIME_UNITS],
    ["Exposed transfers", "exposed", time, TIME_UNITS],
    ["Compute", "compute", time, TIME_UNITS],
    ["Lower bound", "lower_bound", time, TIME_UNITS],
    ["Peak memory", "peak", size, SIZE_UNITS],
  ];
  for (const [name, key, write, units] of entries) {
    const [number, unit] = split(after[key], units);
    const value = element("dd", { class: "value" }, number, element("small", {}, SPACE + unit));
    const was = element("dd", { class: "before" }, ...change(before[key], after[key], write));
    byId("totals").append(element("div", {}, element("dt", {}, name), value, was));
  }
}

/** What a number was before, and by how much it changed: less is better for all of them. */
function change(before, after, write) {
  if (before === after) return ["unchanged"];
  if (before === 0) return [`before ${write(before)}`];
  const share = after / before - 1;
  const text = `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;
  return [`before ${write(before)} `, element("span", { class: share < 0 ? "better" : "worse" }, text)];
}

/** The step before and after as bars of compute, exposed transfers and the rest, with the bound no step can pass. */
function drawBars({ before, after }) {
  const most = Math.max(before.step, after.step);
  if (!most) return;
  const bars = byId("bars");
  for (const [name, totals] of [["Before", before], ["After", after]]) {
    const track = element("div", { class: "track" });
    let from = 0;
    for (const [style, length] of [["compute", totals.compute], ["exposed", totals.exposed], ["rest", totals.step]]) {
      const to = Math.min(totals.step, style === "rest" ? length : from + length);
      track.append(segment(style, from / most, (to - from) / most));
      from = to;
    }
    track.append(segment("bound", totals.lower_bound / most));
    bars.append(element("span", {}, name), track, element("span", { class: "number" }, time(totals.step)));
  }
  const keys = element("div", { class: "keys note" });
  for (const [style, color, name] of [
    ["", "compute", "compute"],
    ["", "receive", "exposed transfers"],
    ["rest", "wait", "other"],
    ["bound", "ink", "lower bound"],
  ]) {
    const swatch = element("i", { class: style });
    swatch.style.background = `var(--${color})`;
    keys.append(element("span", {}, swatch, name));
  }
  bars.append(keys);
  bars.setAttribute("aria-label", `Step of ${time(before.step)} before and ${time(after.step)} after`);
}

function segment(style, left, width) {
  const made = element("i", { class: style });
  made.style.left = `${100 * left}%`;
  if (width !== undefined) made.style.width = `${100 * width}%`;
  return made;
}

function start() {
  const data = JSON.parse(byId("data").textContent);
  const focus = new Focus();
  byId("title").textContent = data.title;
  byId("subtitle").textContent = data.subtitle;
  drawTotals(data);
  drawBars(data);
  const lanes = new Lanes(data, focus);
  drawMemory(data.memory, lanes.extent, focus);
  drawTransfers(data.transfers, focus, (movement) => lanes.reveal(movement));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") lanes.clear();
  });
  document.documentElement.dataset.ready = "yes";
}

window.addEventListener("error", (event) => {
  byId("error").textContent = `This page could not be drawn: ${event.message}`;
  byId("error").hidden = false;
});
start();

// Runs behind the page's own script: does what people do and writes down what they would see, as JSON.
// A browser without a screen shows hardly any frames, so what waits for one is done at once.
window.requestAnimationFrame = (draw) => draw();
const seen = {};
const all = (selector) => [...document.querySelectorAll(selector)];
const texts = (selector) => all(selector).map((found) => found.textContent.replaceAll("\u00a0", " "));
const canvas = document.getElementById("lanes-canvas");
const drawn = () => Number(canvas.dataset.drawn);
const column = (i) => texts(`#transfers tbody td:nth-child(${i})`);
const key = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const pointer = (type, x, y, more = {}) => {
  const box = canvas.getBoundingClientRect();
  const place = { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, ...more };
  const event = type === "wheel" ? new WheelEvent(type, place) : new PointerEvent(type, place);
  canvas.dispatchEvent(event);
  return event.defaultPrevented;
};

seen.title = document.title;
seen.heading = texts("h1")[0];
seen.error = document.getElementById("error").hidden ? "" : texts("#error")[0];
seen.totals = texts("#totals .value");
seen.before = texts("#totals .before");
seen.note = texts("#timeline-note")[0];
seen.curves = all("#memory .card path.curve").length;
seen.budgets = all("#memory .card .budget").length;
seen.alive = all("#memory .card:first-child .alive tr").length;
seen.rows = all("#transfers tbody tr").length;
seen.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
seen.loaded = performance.getEntriesByType("resource").map(({ name }) => name);

// Only one of two timelines, then all of it, then a part of it.
seen.drawn = drawn();
all("#shown input")[0].click();
seen.drawnOfOne = drawn();
all("#shown input")[2].click();
seen.scrollsPage = !pointer("wheel", 600, 100, { deltaY: 120 });
seen.zooms = pointer("wheel", 600, 100, { deltaY: -2400 });
seen.drawnZoomed = drawn();
key(canvas, "0");

// Dragging a range with the shift key shows less, dragging shows something else, the fit button all.
canvas.setPointerCapture = () => {};
for (const shiftKey of [true, false]) {
  pointer("pointerdown", 500, 100, { shiftKey, buttons: 1 });
  pointer("pointermove", 620, 100, { shiftKey, buttons: 1 });
  pointer("pointerup", 620, 100, { shiftKey });
  seen[shiftKey ? "drawnRange" : "drawnDragged"] = drawn();
}
document.getElementById("zoom-fit").click();
seen.drawnFitted = drawn();

// What is under the pointer: the first row begins below the axis and the heading.
key(canvas, ".");
key(canvas, ".");
seen.chosen = texts("#chosen")[0];
key(canvas, "ArrowDown");
seen.below = texts("#chosen")[0];
seen.pinnedRow = texts("#transfers tr[aria-selected=true] td:first-child");
key(canvas, "Escape");
seen.nothingPinned = all("#transfers tr[aria-selected=true]").length === 0 && texts("#chosen")[0] === "";
pointer("pointermove", 140, 80);
seen.tip = texts("#tip")[0];
pointer("pointerleave", 140, 80);
seen.tipGone = document.getElementById("tip").hidden;

// Sorting: numbers fall at first, words rise; a second click turns them round.
const heading = (name) => all("#transfers th button").find((button) => button.textContent === name);
const sorts = () => all("#transfers th[aria-sort]").map((th) => [th.textContent, th.getAttribute("aria-sort")]);
seen.sortedAtFirst = sorts();
heading("Movement").click();
seen.falling = column(1);
heading("Movement").click();
seen.rising = column(1);
heading("Limit").click();
seen.limits = column(11);
seen.sorted = sorts();

// A row chosen by key shows its spans.
const row = document.querySelector("#transfers tbody tr[tabindex='0']");
key(row, "ArrowDown");
key(document.activeElement, "Enter");
seen.chosenRow = texts("#transfers tr[aria-selected=true] td:nth-child(11)");
document.querySelector("#memory .more").click();
seen.allAlive = all("#memory .card:first-child .alive tr").length;
seen.errorAfter = document.getElementById("error").hidden ? "" : texts("#error")[0];

const output = document.createElement("pre");
output.id = "probe";
output.textContent = JSON.stringify(seen).replaceAll("<", "\\u003c").replaceAll("&", "\\u0026").replaceAll(">", "\\u003e");
document.body.append(output);

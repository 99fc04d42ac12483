// Memory over time: a card for each device with its curve, its budget and what is alive at the peak.

const CHART = { height: 132, top: 16, bottom: 18, left: 58, right: 6 };
/** How many of the tensors alive at the peak are listed at first. */
const LISTED = 6;

/** Fills the section; `extent` is the end of the time axis. All charts have the same axes, so that devices compare. */
function drawMemory(curves, extent, focus) {
  const most = Math.max(1, ...curves.map((curve) => curve.peak));
  const budgets = curves.map((curve) => curve.budget).filter((budget) => budget !== null);
  // A budget far above all curves would press them flat; its number is in the heading anyway.
  const top = roundSize(Math.max(most * 1.04, ...budgets.filter((budget) => budget <= 2 * most)));
  for (const curve of curves) drawCard(curve, { extent, top }, focus);
  const largest = curves.reduce((a, b) => (b.peak > a.peak ? b : a), { peak: 0 });
  byId("memory-note").textContent = curves.length
    ? `Bytes alive over the step; the highest peak is on dev${largest.device}`
    : "The report has no memory curves.";
}

function drawCard(curve, axes, focus) {
  const read = element("span", { class: "read" });
  const budget = !curve.budget ? "" : ` of ${size(curve.budget)} (${percent(curve.peak / curve.budget)})`;
  const heading = element("h3", {}, `dev${curve.device}`, element("span", {}, `peak ${size(curve.peak)}${budget}`), read);
  const chart = svg("svg", { role: "img", "aria-label": `Memory of dev${curve.device}: ${heading.textContent}` });
  byId("memory").append(element("div", { class: "card" }, heading, chart, ...aliveList(curve)));
  let width = 0;
  const draw = () => {
    width = chart.clientWidth;
    drawCurve(chart, width, curve, axes);
  };
  draw();
  new ResizeObserver(draw).observe(chart);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const share = (event.clientX - box.left - CHART.left) / (box.width - CHART.left - CHART.right);
    focus.pointAt(Math.min(1, Math.max(0, share)) * axes.extent);
  });
  chart.addEventListener("pointerleave", () => focus.pointAt(null));
  const starts = Float64Array.from(curve.points, ([start]) => start);
  focus.onTime((at) => {
    const after = at === null ? 0 : firstAbove(starts, at);
    read.textContent = at === null ? "" : `${size(after ? curve.points[after - 1][1] : 0)} at ${time(at)}`;
    showCursor(chart, at === null ? null : scales(width, axes).x(at));
  });
}

function scales(width, axes) {
  const inner = Math.max(1, width - CHART.left - CHART.right);
  const high = CHART.height - CHART.top - CHART.bottom;
  return {
    inner,
    x: (at) => CHART.left + (at / axes.extent) * inner,
    y: (bytes) => CHART.top + high * (1 - bytes / axes.top),
  };
}

function drawCurve(chart, width, curve, axes) {
  const { x, y, inner } = scales(width, axes);
  const base = y(0);
  const parts = [];
  for (const bytes of [axes.top, axes.top / 2, 0]) {
    const at = Math.round(y(bytes)) + 0.5;
    parts.push(svg("line", { class: bytes ? "grid" : "base", x1: CHART.left, x2: width - CHART.right, y1: at, y2: at }));
    parts.push(svg("text", { x: CHART.left - 8, y: at + 4, "text-anchor": "end" }, size(bytes)));
  }
  const { marks, write } = ticks(0, axes.extent, inner / 90);
  for (const at of marks.filter((at) => x(at) < width - 30)) {
    parts.push(svg("text", { x: x(at), y: CHART.height - 3, "text-anchor": at ? "middle" : "start" }, write(at)));
  }
  const steps = outline(curve.points, axes.extent, inner, x, y);
  if (steps) {
    parts.push(svg("path", { class: "area", d: `M${x(curve.points[0][0])} ${base}L${steps}V${base}Z` }));
    parts.push(svg("path", { class: "curve", d: `M${steps}` }));
    parts.push(svg("circle", { class: "peak", cx: x(curve.peak_at), cy: y(curve.peak), r: 3.5 }));
  }
  if (curve.budget !== null && curve.budget <= axes.top) {
    const at = y(curve.budget);
    parts.push(svg("line", { class: "budget", x1: CHART.left, x2: width - CHART.right, y1: at, y2: at }));
    parts.push(svg("text", { class: "budget-name", x: width - CHART.right, y: at - 4, "text-anchor": "end" }, "budget"));
  }
  parts.push(svg("line", { class: "cursor", y1: CHART.top, y2: base, hidden: "" }));
  chart.replaceChildren(...parts);
}

/** The curve as a path of steps, with the most bytes of each pixel where points are closer than pixels. */
function outline(points, extent, pixels, x, y) {
  if (!points.length) return "";
  let kept = points;
  if (points.length > 2 * pixels) {
    const most = new Map();
    for (const [at, bytes] of points) {
      const pixel = Math.floor((at / extent) * pixels);
      const known = most.get(pixel);
      if (!known || bytes > known[1]) most.set(pixel, [known ? known[0] : at, bytes]);
    }
    kept = [...most.values()];
  }
  const steps = kept.map(([at, bytes], i) => {
    const [px, py] = [x(at).toFixed(1), y(bytes).toFixed(1)];
    return i ? `H${px}V${py}` : `${px} ${py}`;
  });
  return `${steps.join("")}H${x(extent).toFixed(1)}`;
}

function showCursor(chart, x) {
  const line = chart.querySelector(".cursor");
  line.toggleAttribute("hidden", x === null);
  if (x === null) return;
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
}

/** What is alive at the peak: the largest few, and a button for the rest. */
function aliveList(curve) {
  if (!curve.alive.length) return [];
  const body = element("tbody");
  const caption = element("caption", {}, `Alive at the peak, ${time(curve.peak_at)} into the step`);
  const table = element("table", { class: "alive" }, caption, body);
  const list = (entries) => body.append(...entries.map((entry) => aliveRow(entry, curve)));
  list(curve.alive.slice(0, LISTED));
  const rest = curve.alive.slice(LISTED);
  if (!rest.length) return [table];
  const bytes = rest.reduce((sum, entry) => sum + entry.bytes, 0);
  const more = element("button", { class: "more", type: "button" }, `${rest.length} more, ${size(bytes)}`);
  more.addEventListener("click", () => {
    list(rest);
    more.remove();
  });
  return [table, more];
}

function aliveRow(entry, curve) {
  const bar = element("i");
  bar.style.width = `${(100 * entry.bytes) / Math.max(1, curve.alive[0].bytes)}%`;
  return element(
    "tr",
    {},
    element("td", { class: "what", title: entry.name }, entry.name),
    element("td", { class: "role", title: entry.role }, entry.role),
    element("td", { class: "size" }, ...withUnit(split(entry.bytes, SIZE_UNITS))),
    element("td", { class: "share" }, element("span", { class: "meter" }, bar)),
  );
}

/** A number and its unit as elements that align in a column. */
function withUnit([number, unit]) {
  const wide = SIZE_UNITS.some(([name]) => name === unit);
  return [number, element("span", { class: wide ? "unit wide" : "unit" }, unit)];
}

// Draws the visible part of timelines on a canvas: first what stays while the pointer moves, then what follows it. Holds
// no state: a scene says all that is to be seen.

const ROW = { height: 20, gap: 3, device: 9, heading: 30 };
const AXIS = 26;
const STYLES = ["compute", "compute-alternate", "send", "receive", "wait"];
const WAIT = STYLES.indexOf("wait");

/** Colours of the page as it looks now. */
function readColors() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    spans: STYLES.map(color),
    labels: ["on-compute", "on-compute-alternate", "on-send", "on-receive", "muted"].map(color),
    ...Object.fromEntries(["ink", "muted", "line", "grid", "surface", "accent"].map((name) => [name, color(name)])),
    font: style.getPropertyValue("--sans").trim(),
  };
}

/** Draws lanes, their names and the axis, and returns how many rectangles the spans took. */
function paintBase(context, scene) {
  const { width, height, gutter, colors, top } = scene;
  context.clearRect(0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, width, height - AXIS);
  context.clip();
  const marks = ticks(scene.from, scene.to, (width - gutter) / 110);
  context.fillStyle = colors.grid;
  for (const at of marks.marks) context.fillRect(Math.round(scene.x(at)), AXIS, 1, height);
  const visible = scene.rows.filter((row) => row.y - top + ROW.height > AXIS && row.y - top < height);
  let drawn = 0;
  context.globalAlpha = scene.dimmed ? 0.25 : 1;
  for (const row of visible) drawn += paintRow(context, scene, row);
  context.globalAlpha = 1;
  context.restore();
  paintGutter(context, scene, visible);
  paintAxis(context, scene, marks);
  return drawn;
}

/** Draws what people point at or have chosen, over the base. */
function paintOver(context, scene) {
  context.save();
  context.beginPath();
  context.rect(scene.gutter, AXIS, scene.width, scene.height);
  context.clip();
  paintMovement(context, scene);
  paintOutline(context, scene, scene.chosen, 2);
  paintOutline(context, scene, scene.under, 1.25);
  paintPointer(context, scene);
  context.restore();
}

/** Draws one row. Spans below a pixel share it: it shows the kind that fills most of it. */
function paintRow(context, scene, row) {
  const { spans } = row;
  const run = { style: -1, from: 0, to: 0 };
  const labels = [];
  let drawn = 0;
  const flush = () => {
    if (run.style >= 0) {
      fillSpan(context, scene, row, run);
      drawn += 1;
    }
    run.style = -1;
  };
  const pixel = { at: -1, weights: new Float64Array(STYLES.length) };
  const flushPixel = () => {
    if (pixel.at < 0) return;
    const style = pixel.weights.indexOf(Math.max(...pixel.weights));
    if (style !== run.style || pixel.at > run.to) {
      flush();
      Object.assign(run, { style, from: pixel.at });
    }
    run.to = pixel.at + 1;
    pixel.at = -1;
  };
  for (let i = firstAbove(spans.end, scene.from); i < spans.start.length && spans.start[i] <= scene.to; i += 1) {
    const from = Math.round(scene.x(spans.start[i]));
    const to = Math.round(scene.x(spans.end[i]));
    if (to - from <= 1) {
      if (from !== pixel.at) {
        flushPixel();
        pixel.at = from;
        pixel.weights.fill(0);
      }
      pixel.weights[spans.style[i]] += spans.end[i] - spans.start[i] || 1e-3;
      continue;
    }
    flushPixel();
    flush();
    // Neighbours stay apart by a pixel where there is room for it.
    Object.assign(run, { style: spans.style[i], from, to: to - from > 3 ? to - 1 : to });
    flush();
    if (to - from > 30 && spans.style[i] !== WAIT && !scene.dimmed) labels.push(i);
  }
  flushPixel();
  flush();
  for (const i of labels) paintLabel(context, scene, row, i);
  return drawn;
}

function fillSpan(context, scene, row, { style, from, to }) {
  context.fillStyle = scene.colors.spans[style];
  const left = Math.max(from, scene.gutter);
  const width = Math.min(to, scene.width) - left;
  const y = row.y - scene.top;
  if (style === WAIT) context.fillRect(left, y + 7, width, 6);
  else context.fillRect(left, y, width, ROW.height);
}

function paintLabel(context, scene, row, i) {
  const { spans } = row;
  const left = Math.max(scene.x(spans.start[i]), scene.gutter) + 5;
  const room = Math.min(scene.x(spans.end[i]), scene.width) - left - 5;
  if (room < 20) return;
  context.font = `11px ${scene.colors.font}`;
  context.textAlign = "left";
  context.fillStyle = scene.colors.labels[spans.style[i]];
  const text = scene.words[spans.name[i]];
  const needed = context.measureText(text).width;
  const kept = needed <= room ? text.length : Math.floor((text.length * (room - 8)) / needed);
  if (kept < Math.min(4, text.length)) return;
  context.fillText(kept < text.length ? `${text.slice(0, kept)}…` : text, left, row.y - scene.top + 14);
}

/** Draws the spans of the movement in focus over all others, and its arrows. */
function paintMovement(context, scene) {
  for (const place of scene.places) {
    const { row, i } = place;
    const [from, to] = [scene.x(row.spans.start[i]), scene.x(row.spans.end[i])];
    if (to < scene.gutter || from > scene.width) continue;
    fillSpan(context, scene, row, { style: row.spans.style[i], from, to: Math.max(to, from + 2) });
    if (to - from > 30 && row.spans.style[i] !== WAIT) paintLabel(context, scene, row, i);
    paintOutline(context, scene, place, 1.25);
  }
  context.strokeStyle = context.fillStyle = scene.colors.ink;
  context.lineWidth = 1.25;
  for (const { from, to } of scene.arrows) paintArrow(context, scene, from, to);
}

/** Draws an arrow from the end of a sender, or where its receiver starts if that is earlier, to that start. */
function paintArrow(context, scene, from, to) {
  const [sent, received] = [from.row.spans, to.row.spans];
  const left = Math.min(sent.end[from.i], Math.max(sent.start[from.i], received.start[to.i]));
  const down = to.row.y > from.row.y ? 1 : -1;
  const edge = (row, below) => row.y - scene.top + (below ? ROW.height : 0);
  const start = { x: scene.x(left), y: edge(from.row, down > 0) };
  const end = { x: scene.x(received.start[to.i]), y: edge(to.row, down < 0) };
  const bend = (down * Math.abs(end.y - start.y)) / 2;
  context.beginPath();
  context.moveTo(start.x, start.y);
  context.bezierCurveTo(start.x, start.y + bend, end.x, end.y - bend, end.x, end.y - 5 * down);
  context.stroke();
  context.beginPath();
  context.moveTo(end.x, end.y);
  context.lineTo(end.x - 3.5, end.y - 7 * down);
  context.lineTo(end.x + 3.5, end.y - 7 * down);
  context.fill();
}

function paintOutline(context, scene, place, thickness) {
  if (!place || !scene.rows.includes(place.row)) return;
  const { row, i } = place;
  const from = Math.max(scene.x(row.spans.start[i]), scene.gutter);
  const to = Math.min(scene.x(row.spans.end[i]), scene.width + 4);
  if (to < scene.gutter || from > scene.width) return;
  context.strokeStyle = scene.colors.ink;
  context.lineWidth = thickness;
  // Around a narrow span, so that its colour is seen.
  const margin = to - from < 5 ? 2 : 0;
  context.strokeRect(from - margin, row.y - scene.top - margin, Math.max(1, to - from) + 2 * margin, ROW.height + 2 * margin);
}

function paintGutter(context, scene, visible) {
  const { colors, gutter, height, top } = scene;
  context.fillStyle = colors.surface;
  context.fillRect(0, AXIS, gutter - 1, height);
  context.fillStyle = colors.line;
  context.fillRect(gutter - 1, 0, 1, height);
  context.textAlign = "left";
  context.save();
  context.beginPath();
  context.rect(0, AXIS, scene.width, height);
  context.clip();
  for (const row of visible) {
    const y = row.y - top + 14;
    if (row.first) {
      context.font = `600 12px ${colors.font}`;
      context.fillStyle = colors.ink;
      context.fillText(deviceName(row), 12, y);
    }
    context.font = `12px ${colors.font}`;
    context.fillStyle = colors.muted;
    context.fillText(row.label, gutter - 72, y);
  }
  for (const heading of scene.headings) {
    const y = heading.y - top;
    context.fillStyle = colors.line;
    if (heading.y > AXIS + 1) context.fillRect(0, y, scene.width, 1);
    context.font = `600 12px ${colors.font}`;
    context.fillStyle = colors.ink;
    context.fillText(heading.name, 12, y + 20);
    context.font = `12px ${colors.font}`;
    context.fillStyle = colors.muted;
    context.fillText(heading.note, gutter + 8, y + 20);
  }
  context.restore();
}

function paintAxis(context, scene, { marks, write }) {
  const { colors, gutter, width } = scene;
  context.fillStyle = colors.surface;
  context.fillRect(0, 0, width, AXIS);
  context.fillStyle = colors.line;
  context.fillRect(0, AXIS - 1, width, 1);
  context.fillRect(gutter - 1, 0, 1, AXIS);
  context.font = `11px ${colors.font}`;
  context.fillStyle = colors.muted;
  for (const at of marks) {
    const [x, text] = [Math.round(scene.x(at)), write(at)];
    if (x < gutter || x + 5 + context.measureText(text).width > width) continue;
    context.fillRect(x, AXIS - 6, 1, 5);
    context.fillText(text, x + 5, AXIS - 9);
  }
}

/** Draws the time that is pointed at elsewhere on the page, and the range that is being chosen. */
function paintPointer(context, scene) {
  const { colors, gutter, height } = scene;
  if (scene.pointed !== null) {
    const x = Math.round(scene.x(scene.pointed));
    context.fillStyle = colors.muted;
    if (x >= gutter) context.fillRect(x, AXIS, 1, height);
  }
  if (!scene.range) return;
  const [left, right] = scene.range.map((at) => Math.max(gutter, scene.x(at))).sort((a, b) => a - b);
  context.globalAlpha = 0.16;
  context.fillStyle = colors.accent;
  context.fillRect(left, AXIS, right - left, height);
  context.globalAlpha = 1;
  context.fillRect(left, AXIS, 1, height);
  context.fillRect(right - 1, AXIS, 1, height);
  context.fillStyle = colors.ink;
  context.font = `600 12px ${colors.font}`;
  context.textAlign = "center";
  context.fillText(time(Math.abs(scene.range[1] - scene.range[0])), (left + right) / 2, AXIS + 16);
}

// The timeline: which part of it is seen, and what people do to it with pointer, wheel and keys.

/** No view is narrower, in nanoseconds. */
const NARROWEST = 20;

class Lanes {
  #scroller = byId("lanes");
  #canvas = byId("lanes-canvas");
  #context = this.#canvas.getContext("2d");
  /** What stays while the pointer moves, and a text that says which view it shows. */
  #base = document.createElement("canvas").getContext("2d");
  #baseShows = "";
  #colors = readColors();
  #shown = [];
  #rows = [];
  #headings = [];
  #range = null;
  #under = null;
  #chosen = null;
  #pointed = null;
  #asked = false;

  constructor(data, focus) {
    this.data = data;
    this.focus = focus;
    this.transfers = new Map(data.transfers.map((row) => [row.movement, row]));
    this.#readRows();
    this.#context.font = `600 12px ${this.#colors.font}`;
    const names = this.timelines.flatMap(({ rows }) => rows.map((row) => this.#context.measureText(deviceName(row)).width));
    this.gutter = Math.ceil(Math.max(0, ...names)) + 96;
    const ends = this.timelines.flatMap(({ rows }) => rows.map(({ spans }) => spans.end.at(-1) ?? 0));
    const points = data.memory.map((curve) => curve.points.at(-1)?.[0] ?? 0);
    this.extent = Math.max(1, ...ends, ...points, data.after.step);
    this.#fit();
    this.#drawControls();
    this.#show(data.timelines.map((_, i) => i));
    this.#listen();
  }

  /** Shows where `movement` is. */
  reveal(movement) {
    const places = this.#placesOf(movement);
    if (!places.length) return;
    const from = Math.min(...places.map(({ row, i }) => row.spans.start[i]));
    const to = Math.max(...places.map(({ row, i }) => row.spans.end[i]));
    const seen = from >= this.from && to <= this.to && to - from > (this.to - this.from) / 40;
    if (!seen) this.#look(from - 2 * (to - from), to + 2 * (to - from));
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.#scroller.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
  }

  /** Lets go of what is chosen. */
  clear() {
    this.#choose(null);
  }

  #readRows() {
    const layers = new Map();
    this.timelines = this.data.timelines.map((timeline) => ({
      ...timeline,
      rows: timeline.rows.map((row, position) => readRow(row, timeline.rows[position - 1], layers)),
    }));
    this.places = this.timelines.map(({ rows }) => {
      const places = new Map();
      for (const row of rows) {
        row.spans.movement.forEach((movement, i) => {
          if (movement < 0) return;
          if (!places.has(movement)) places.set(movement, []);
          places.get(movement).push({ row, i });
        });
      }
      return places;
    });
  }

  #drawControls() {
    const { timelines } = this;
    const names = timelines.map(({ name }, i) => [capitalized(name), [i]]);
    if (timelines.length > 1) names.push([timelines.length === 2 ? "Both" : "All", timelines.map((_, i) => i)]);
    byId("shown").hidden = names.length < 2;
    names.forEach(([name, shown], i) => {
      const input = element("input", { type: "radio", name: "shown", value: String(i) });
      input.checked = i === names.length - 1;
      input.addEventListener("change", () => this.#show(shown));
      byId("shown").append(element("label", {}, input, element("span", {}, name)));
    });
    for (const [color, name] of [["compute", "compute, by layer"], ["send", "send"], ["receive", "receive"], ["wait", "wait"]]) {
      const swatch = element("i", { class: color });
      const other = color === "compute" ? "compute-alternate" : color;
      swatch.style.background = `linear-gradient(90deg, var(--${color}) 50%, var(--${other}) 50%)`;
      byId("legend").append(element("li", {}, swatch, name));
    }
    const middle = () => (this.from + this.to) / 2;
    byId("zoom-in").addEventListener("click", () => this.#zoom(0.5, middle()));
    byId("zoom-out").addEventListener("click", () => this.#zoom(2, middle()));
    byId("zoom-fit").addEventListener("click", () => this.#fit());
  }

  /** Lays out the rows of some timelines below one another. */
  #show(shown) {
    this.#shown = shown;
    this.#rows = [];
    this.#headings = [];
    let y = AXIS + (shown.length > 1 ? 0 : 8);
    for (const i of shown) {
      const { name, rows } = this.timelines[i];
      const end = Math.max(0, ...rows.map(({ spans }) => spans.end.at(-1) ?? 0));
      if (shown.length > 1) {
        this.#headings.push({ y, name: capitalized(name), note: `ends at ${time(end)}` });
        y += ROW.heading;
      }
      for (const row of rows) {
        if (row.first && row !== rows[0]) y += ROW.device;
        row.y = y;
        y += ROW.height + ROW.gap;
        this.#rows.push(row);
      }
      y += 8;
    }
    byId("lanes-height").style.height = `${y}px`;
    this.#describe();
    this.#resize();
  }

  #describe() {
    const devices = new Set(this.#rows.map((row) => row.device)).size;
    const spans = this.#rows.reduce((sum, row) => sum + row.spans.start.length, 0);
    const text = `${count(spans, "span")} on ${count(devices, "device")}`;
    byId("timeline-note").textContent = this.timelines.length ? text : "The report has no timelines.";
    this.#canvas.setAttribute("aria-label", `Timeline: ${text}`);
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.#scroller;
    const ratio = window.devicePixelRatio || 1;
    for (const context of [this.#context, this.#base]) {
      context.canvas.width = Math.round(width * ratio);
      context.canvas.height = Math.round(height * ratio);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.#canvas.style.height = `${height}px`;
    [this.width, this.height] = [width, height];
    this.#baseShows = "";
    this.#paintNow();
  }

  #paint() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => this.#paintNow());
  }

  #paintNow() {
    this.#asked = false;
    const movement = this.focus.hovered ?? this.focus.pinned;
    const places = this.#placesOf(movement);
    const scene = {
      ...{ width: this.width, height: this.height, gutter: this.gutter, top: this.#scroller.scrollTop },
      ...{ from: this.from, to: this.to, x: (at) => this.#x(at), rows: this.#rows, headings: this.#headings },
      ...{ colors: this.#colors, words: this.data.words, chosen: this.#chosen, under: this.#under },
      ...{ places, arrows: this.#arrowsOf(movement), pointed: this.#pointed, range: this.#range },
      // What the pointer passes over in the timeline itself does not make all else flicker.
      dimmed: places.length > 0 && !(this.#under && this.focus.pinned === null),
    };
    const shows = [scene.from, scene.to, scene.top, scene.dimmed].join();
    if (shows !== this.#baseShows) {
      this.#canvas.dataset.drawn = paintBase(this.#base, scene);
      this.#baseShows = shows;
    }
    this.#context.clearRect(0, 0, this.width, this.height);
    this.#context.drawImage(this.#base.canvas, 0, 0, this.width, this.height);
    paintOver(this.#context, scene);
  }

  #placesOf(movement) {
    return movement === null ? [] : this.#shown.flatMap((i) => this.places[i].get(movement) ?? []);
  }

  #arrowsOf(movement) {
    if (movement === null) return [];
    return this.#shown.flatMap((shown) => {
      const { rows, arrows } = this.timelines[shown];
      const ours = arrows.filter(([, , row, i]) => rows[row].spans.movement[i] === movement);
      return ours.map(([from, i, to, j]) => ({ from: { row: rows[from], i }, to: { row: rows[to], i: j } }));
    });
  }

  #x(at) {
    return this.gutter + ((at - this.from) / (this.to - this.from)) * (this.width - this.gutter);
  }

  #at(x) {
    return this.from + ((x - this.gutter) / (this.width - this.gutter)) * (this.to - this.from);
  }

  #fit() {
    this.#look(0, this.extent);
  }

  /** Shows `from` to `to`, within the step and no narrower than can be drawn; says whether that changed anything. */
  #look(from, to) {
    const length = Math.min(this.extent, Math.max(NARROWEST, to - from));
    const middle = (from + to) / 2;
    const start = Math.max(0, Math.min(this.extent - length, middle - length / 2));
    const changed = start !== this.from || start + length !== this.to;
    [this.from, this.to] = [start, start + length];
    if (changed && this.width) this.#paint();
    return changed;
  }

  #zoom(factor, around) {
    return this.#look(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  #pan(by) {
    const length = this.to - this.from;
    const from = Math.max(0, Math.min(this.extent - length, this.from + by));
    return this.#look(from, from + length);
  }

  #listen() {
    const canvas = this.#canvas;
    new ResizeObserver(() => this.#resize()).observe(this.#scroller);
    this.#scroller.addEventListener("scroll", () => this.#paint());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#colors = readColors();
      this.#baseShows = "";
      this.#paint();
    });
    this.focus.onMovement(() => this.#paint());
    this.focus.onTime((at) => {
      this.#pointed = at;
      this.#paint();
    });
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("dblclick", (event) => this.#approach(event));
    canvas.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.#key(event.key)) event.preventDefault();
    });
  }

  /** Zooms; where nothing is left to zoom out, and over the names of lanes, the page scrolls instead. */
  #wheel(event) {
    if (event.offsetX < this.gutter) return;
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 18 : 1;
    const pans = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const perPixel = (this.to - this.from) / (this.width - this.gutter);
    const changed = pans
      ? this.#pan(sideways * unit * perPixel)
      : this.#zoom(1.0018 ** (event.deltaY * unit), this.#at(event.offsetX));
    if (changed || event.deltaY < 0) event.preventDefault();
    this.#hover(event);
  }

  /** Drags the timeline, or with the shift key a range to look at; a press that does not move chooses a span. */
  #press(event) {
    if (event.button !== 0 || event.offsetX < this.gutter) return;
    const canvas = this.#canvas;
    const start = { x: event.offsetX, at: this.#at(event.offsetX), moved: false };
    const ranging = event.shiftKey;
    const gesture = new AbortController();
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add(ranging ? "ranging" : "dragging");
    const move = (event) => {
      start.moved ||= Math.abs(event.offsetX - start.x) > 3;
      if (!start.moved) return;
      this.#leave();
      if (ranging) this.#range = [start.at, this.#at(Math.max(this.gutter, event.offsetX))];
      else this.#pan(start.at - this.#at(event.offsetX));
      this.#paint();
    };
    const end = (event) => {
      gesture.abort();
      canvas.classList.remove("ranging", "dragging");
      if (this.#range) this.#look(...this.#range.toSorted((a, b) => a - b));
      else if (!start.moved && event.type === "pointerup") this.#choose(this.#find(event));
      this.#range = null;
      this.#paint();
    };
    canvas.addEventListener("pointermove", move, gesture);
    canvas.addEventListener("pointerup", end, gesture);
    canvas.addEventListener("pointercancel", end, gesture);
  }

  #hover(event) {
    if (event.buttons) return;
    const place = this.#find(event);
    this.focus.pointAt(event.offsetX < this.gutter ? null : this.#at(event.offsetX));
    if (this.#under?.row !== place?.row || this.#under?.i !== place?.i) {
      this.#under = place;
      this.focus.hover(movementOf(place));
      this.#paint();
    }
    showTip(place && spanFacts(this.data, this.transfers, place), event.clientX, event.clientY);
  }

  #leave() {
    if (this.#under) this.focus.hover(null);
    this.#under = null;
    showTip(null);
    this.focus.pointAt(null);
  }

  /** The span at a pointer, or one that is at most three pixels away. */
  #find({ offsetX, offsetY }) {
    const y = offsetY + this.#scroller.scrollTop;
    const row = this.#rows.find((row) => y >= row.y - 1 && y < row.y + ROW.height + 1);
    if (!row || offsetX < this.gutter || offsetY < AXIS) return null;
    const after = firstAbove(row.spans.start, this.#at(offsetX));
    const distance = (i) => Math.max(this.#x(row.spans.start[i]) - offsetX, offsetX - this.#x(row.spans.end[i]), 0);
    const near = [after - 1, after].filter((i) => i >= 0 && i < row.spans.start.length && distance(i) <= 3);
    near.sort((a, b) => distance(a) - distance(b));
    return near.length ? { row, i: near[0] } : null;
  }

  #approach(event) {
    const place = this.#find(event);
    if (!place) return;
    const [from, to] = [place.row.spans.start[place.i], place.row.spans.end[place.i]];
    this.#look(from - (to - from), to + (to - from));
  }

  #choose(place) {
    this.#chosen = place;
    this.focus.pin(movementOf(place));
    const facts = place ? spanFacts(this.data, this.transfers, place) : null;
    byId("chosen").replaceChildren(...(facts ? chosenText(facts) : []));
    this.#paint();
  }

  /** Chooses another span of the row, or one of a row above or below at about the same time. */
  #walk(along, across) {
    const { row, i } = this.#chosen ?? { row: this.#rows[0], i: -1 };
    const other = this.#rows[this.#rows.indexOf(row) + across];
    if (!other || !other.spans.start.length) return;
    const level = i < 0 ? 0 : Math.max(0, firstAbove(other.spans.start, row.spans.start[i]) - 1);
    const next = across ? level : Math.min(row.spans.start.length - 1, Math.max(0, i + along));
    this.#choose({ row: other, i: next });
    const [from, to] = [other.spans.start[next], other.spans.end[next]];
    if (from < this.from || to > this.to) this.#pan((from + to - this.from - this.to) / 2);
    const hidden = other.y - this.#scroller.scrollTop;
    if (hidden < AXIS || hidden + ROW.height > this.height) this.#scroller.scrollTop = other.y - this.height / 2;
  }

  /** Does what a key means; says whether it means anything. */
  #key(key) {
    const middle = (this.from + this.to) / 2;
    const part = (this.to - this.from) / 8;
    const meanings = {
      ArrowLeft: () => this.#pan(-part),
      ArrowRight: () => this.#pan(part),
      ArrowUp: () => this.#walk(0, -1),
      ArrowDown: () => this.#walk(0, 1),
      "+": () => this.#zoom(1 / 1.5, middle),
      "-": () => this.#zoom(1.5, middle),
      0: () => this.#fit(),
      ",": () => this.#walk(-1, 0),
      ".": () => this.#walk(1, 0),
    };
    const meaning = { ...meanings, "=": meanings["+"], "−": meanings["-"], Home: meanings[0] }[key];
    meaning?.();
    return meaning !== undefined;
  }
}

/** A row with its spans as flat arrays. Neighbouring layers get different shades. */
function readRow(row, previous, layers) {
  const shade = (layer) => {
    if (!layers.has(layer)) layers.set(layer, layers.size % 2);
    return layers.get(layer);
  };
  const start = Float64Array.from(row.start);
  const spans = {
    start,
    end: Float64Array.from(row.duration, (duration, i) => start[i] + duration),
    style: Uint8Array.from(row.what, (what, i) => (what === 0 ? shade(row.layer[i]) : what + 1)),
    ...{ what: row.what, name: row.name, layer: row.layer, bytes: row.bytes, movement: row.movement },
  };
  const first = previous?.device !== row.device;
  const label = first || previous.kind !== row.kind ? row.kind : "";
  return { device: row.device, rank: row.rank, kind: row.kind, first, label, spans, y: 0 };
}

// Numbers as people read them, and elements of the page. Times are nanoseconds, sizes bytes.

const TIME_UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
const SIZE_UNITS = [["B", 1], ["KiB", 1024], ["MiB", 1024 ** 2], ["GiB", 1024 ** 3], ["TiB", 1024 ** 4]];
const SPACE = "\u00a0";

/** Three significant digits, or all digits of a whole number in the smallest unit: `[number, unit]`. */
function split(value, units) {
  let last = units.length - 1;
  while (last > 0 && Math.abs(value) < units[last][1]) last -= 1;
  // Rounding may reach the next unit: 999.96 µs are 1.00 ms.
  const next = units[last + 1];
  if (next && Number(digits(value / units[last][1])) * units[last][1] >= next[1]) last += 1;
  const scaled = value / units[last][1];
  return [last === 0 ? String(Math.round(value)) : digits(scaled), units[last][0]];
}

function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

function time(ns) {
  return split(ns, TIME_UNITS).join(SPACE);
}

function size(bytes) {
  return split(bytes, SIZE_UNITS).join(SPACE);
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)}${SPACE}%`;
}

/** With a sign that is as wide as a plus. */
function signed(value) {
  return value > 0 ? `+${value}` : value < 0 ? `−${-value}` : "0";
}

function count(number, noun) {
  return `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;
}

function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Bytes in a time as a rate; nothing if no time passes. */
function rate(bytes, ns) {
  return ns > 0 ? `${size((bytes * 1e9) / ns)}/s` : "";
}

/** Times from `from` to `to` for the marks of an axis, about `wanted` of them, and how to write them. */
function ticks(from, to, wanted) {
  const rough = (to - from) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
  const unit = TIME_UNITS.findLast(([, ns]) => ns <= Math.max(step, to / 10)) ?? TIME_UNITS[0];
  const decimals = Math.max(0, Math.ceil(Math.log10(unit[1] / step) - 1e-9));
  const marks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) marks.push(at);
  return { marks, write: (at) => `${(at / unit[1]).toFixed(decimals)}${SPACE}${unit[0]}` };
}

/** A round number of bytes not below `bytes`, for the top of an axis. */
function roundSize(bytes) {
  const unit = SIZE_UNITS.findLast(([, size]) => size <= bytes) ?? SIZE_UNITS[0];
  const scaled = bytes / unit[1];
  const power = 10 ** Math.floor(Math.log10(Math.max(scaled, 1)));
  const factor = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((factor) => factor * power >= scaled);
  return factor * power * unit[1];
}

function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes and children; strings become text, never markup. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The first position in ascending `values` whose value is above `limit`. */
function firstAbove(values, limit) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The device of a row, with its rank where there are several. */
function deviceName({ device, rank }) {
  return rank === undefined ? `dev${device}` : `rank ${rank} dev${device}`;
}

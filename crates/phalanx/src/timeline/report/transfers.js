// The verdict on every transfer: a table that sorts by any column and points at the spans of a row.

/** Columns: heading, class, value to sort by, cell; numbers sort downward at first. */
const COLUMNS = [
  ["Movement", "number", (row) => row.movement, (row) => [String(row.movement)]],
  ["Kind", "", (row) => row.kind, (row) => [row.kind]],
  ["Layer", "layer", (row) => row.layer, (row) => [row.layer]],
  ["Bytes", "number", (row) => row.bytes, (row) => withUnit(split(row.bytes, SIZE_UNITS))],
  ["Devices", "number", (row) => row.devices, (row) => [String(row.devices)]],
  ["Time", "number", (row) => row.time, (row) => withUnit(split(row.time, TIME_UNITS))],
  ["Hidden", "number", (row) => row.hidden, (row) => withUnit(split(row.hidden, TIME_UNITS))],
  ["Exposed", "number", (row) => exposed(row), (row) => withUnit(split(exposed(row), TIME_UNITS))],
  ["Hidden share", "number", (row) => hiddenShare(row), (row) => shareCell(row)],
  ["Moved by", "number", (row) => row.moves, (row) => [signed(row.moves)]],
  ["Limit", "", (row) => row.limit, (row) => [row.limit]],
];

function exposed(row) {
  return Math.max(0, row.time - row.hidden);
}

function hiddenShare(row) {
  return row.time > 0 ? row.hidden / row.time : 1;
}

function shareCell(row) {
  const bar = element("i");
  bar.style.width = `${100 * Math.min(1, hiddenShare(row))}%`;
  return [element("span", { class: "meter" }, bar), element("span", { class: "share" }, percent(hiddenShare(row)))];
}

/** Fills the table. Hovering a row shows its movement, choosing it keeps it; `reveal` brings its spans into view. */
function drawTransfers(transfers, focus, reveal) {
  const table = byId("transfers").querySelector("table");
  if (!transfers.length) {
    byId("transfers").replaceChildren(element("p", { class: "empty" }, "Nothing changes devices in this step."));
    return;
  }
  const rows = transfers.map((transfer) => ({ transfer, tr: transferRow(transfer) }));
  const byMovement = new Map(rows.map((row) => [row.transfer.movement, row.tr]));
  const movement = (tr) => Number(tr.dataset.movement);
  const body = table.tBodies[0];
  drawHeadings(table.tHead, rows, body);
  body.addEventListener("pointerover", (event) => {
    const tr = event.target.closest("tr");
    if (tr) focus.hover(movement(tr));
  });
  body.addEventListener("pointerleave", () => focus.hover(null));
  const choose = (tr) => {
    focus.pin(focus.pinned === movement(tr) ? null : movement(tr));
    if (focus.pinned !== null) reveal(focus.pinned);
  };
  body.addEventListener("click", (event) => {
    const tr = event.target.closest("tr");
    rove(body, tr);
    choose(tr);
  });
  body.addEventListener("keydown", (event) => rowKey(event, body, choose));
  body.addEventListener("focusin", (event) => focus.hover(movement(event.target.closest("tr"))));
  body.addEventListener("focusout", () => focus.hover(null));
  focus.onMovement(() => {
    for (const tr of body.querySelectorAll(".hovered, [aria-selected=true]")) {
      tr.classList.remove("hovered");
      tr.setAttribute("aria-selected", "false");
    }
    byMovement.get(focus.hovered)?.classList.add("hovered");
    byMovement.get(focus.pinned)?.setAttribute("aria-selected", "true");
  });
  const [all, hidden] = ["time", "hidden"].map((key) => transfers.reduce((sum, row) => sum + row[key], 0));
  byId("transfers-note").textContent =
    `${count(transfers.length, "transfer")}, ${percent(all ? hidden / all : 1)} of their time hidden. Choose a row to find it in the timeline`;
}

function transferRow(transfer) {
  const tr = element("tr", { tabindex: "-1", "aria-selected": "false", "data-movement": String(transfer.movement) });
  for (const [, style, , cell] of COLUMNS) tr.append(element("td", style ? { class: style } : {}, ...cell(transfer)));
  tr.querySelector(".layer").title = transfer.layer;
  return tr;
}

function drawHeadings(head, rows, body) {
  const headings = COLUMNS.map(([name, style, value], i) => {
    const button = element("button", { type: "button" }, name);
    const th = element("th", { scope: "col", class: style }, button);
    button.addEventListener("click", () => sortBy(i, th.getAttribute("aria-sort")));
    return { th, value, falls: style === "number" };
  });
  function sortBy(i, sorted) {
    const { th, value, falls } = headings[i];
    const descending = sorted ? sorted === "ascending" : falls;
    for (const other of headings) other.th.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", descending ? "descending" : "ascending");
    rows.sort((a, b) => {
      const [x, y] = [value(a.transfer), value(b.transfer)];
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return (descending ? -order : order) || a.transfer.movement - b.transfer.movement;
    });
    body.replaceChildren(...rows.map((row) => row.tr));
    rove(body, rows[0].tr);
  }
  head.replaceChildren(element("tr", {}, ...headings.map(({ th }) => th)));
  sortBy(COLUMNS.findIndex(([name]) => name === "Exposed"), null);
}

/** Makes `tr` the one row that the tab key reaches; arrows reach the others. */
function rove(body, tr) {
  body.querySelector("tr[tabindex='0']")?.setAttribute("tabindex", "-1");
  tr.setAttribute("tabindex", "0");
}

function rowKey(event, body, choose) {
  const tr = event.target.closest("tr");
  if (event.key === "Enter" || event.key === " ") {
    choose(tr);
    event.preventDefault();
    return;
  }
  const ways = { ArrowDown: tr.nextElementSibling, ArrowUp: tr.previousElementSibling };
  const other = { ...ways, Home: body.firstElementChild, End: body.lastElementChild }[event.key];
  if (!other) return;
  rove(body, other);
  other.focus();
  event.preventDefault();
}

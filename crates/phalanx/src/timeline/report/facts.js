// What there is to say about one span, and where it is said: beside the pointer, and below the timeline for the chosen one.

const KINDS = ["compute", "send", "receive", "wait"];

function movementOf(place) {
  const movement = place ? place.row.spans.movement[place.i] : -1;
  return movement < 0 ? null : movement;
}

/** What there is to say about a span: its name and pairs of a word and a text. */
function spanFacts(data, transfers, { row, i }) {
  const { spans } = row;
  const duration = spans.end[i] - spans.start[i];
  const facts = [["", `${KINDS[spans.what[i]]} on ${deviceName(row)}`]];
  const layer = data.words[spans.layer[i]];
  if (layer) facts.push(["layer", layer]);
  facts.push(["start", time(spans.start[i])], ["duration", time(duration)]);
  if (spans.bytes[i]) facts.push(["bytes", [size(spans.bytes[i]), rate(spans.bytes[i], duration)].filter(Boolean).join(", ")]);
  const movement = movementOf({ row, i });
  if (movement === null) return { name: data.words[spans.name[i]], facts };
  const transfer = transfers.get(movement);
  facts.push(["movement", transfer ? `${movement}, ${transfer.kind}` : String(movement)]);
  if (transfer) facts.push(["hidden", `${percent(hiddenShare(transfer))}, limit: ${transfer.limit}`]);
  return { name: data.words[spans.name[i]], facts };
}

function chosenText({ name, facts }) {
  const texts = facts.map(([word, text]) => element("span", {}, ` · ${word ? `${word} ` : ""}${text}`));
  return [element("b", {}, name), ...texts];
}

/** Shows facts beside the pointer, on the side where there is room; without facts, nothing. */
function showTip(facts, x, y) {
  const tip = byId("tip");
  tip.hidden = !facts;
  if (!facts) return;
  const list = element("dl");
  for (const [word, text] of facts.facts.slice(1)) list.append(element("dt", {}, word), element("dd", {}, text));
  tip.replaceChildren(element("b", {}, facts.name), facts.facts[0][1], list);
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - width - 12 : x + 16;
  const top = y + 18 + height > innerHeight ? y - height - 12 : y + 18;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

// ---- race: where each lane is in the text ----------------------------------------------------------------------------
// Lanes that wrote the same tokens share a paragraph; another text begins where it parts from plain decoding's.

const placesBox = $('.race-texts');
const POLE_PX = 16; // how far a pole stands out above its line
const NAME_LETTER_PX = 6.4;
let paragraphs = [];

function buildPlaces() {
  const withText = race.lanes.filter((lane) => lane.steps.length);
  placesBox.replaceChildren(el('h2', '', 'Where each of them is in the text'));
  paragraphs = [];
  for (const owner of withText.filter((lane) => lane.text_of === lane.method)) {
    const sharing = withText.filter((lane) => lane.text_of === owner.method);
    // up to where they part, lanes with another text stand in plain decoding's
    if (owner.method === 'plain') addParagraph(owner, 0, withText.filter((lane) => sharing.includes(lane) || lane.first_difference != null), '');
    else if (owner.first_difference != null) addParagraph(owner, owner.first_difference, sharing, `another text from token ${owner.first_difference + 1} on`);
    else addParagraph(owner, 0, sharing, owner.whole ? 'a text of its own' : 'not compared');
  }
}

/** The text of `owner` from a token on, with a pole for each lane. */
function addParagraph(owner, from, lanes, note) {
  const tokens = owner.steps.flatMap(([, , , , written]) => written);
  const box = el('div', 'places');
  box.dir = 'auto';
  let before = tokens[from - 1]?.[0].at(-1) ?? '';
  const spans = tokens.slice(from).map(([text, , label]) => {
    const span = el('span', 'tocome', ...leaves({ text, label }, before));
    before = text.at(-1) ?? before;
    return span;
  });
  const hidden = (className) => lanes.map(() => { const node = el('span', className); node.ariaHidden = 'true'; node.hidden = true; return node; });
  const paragraph = { from, owner, lanes, spans, poles: hidden('pole'), names: hidden('name'), reached: 0, box };
  lanes.forEach((lane, i) => paragraph.poles[i].classList.toggle('first', lane.line === 'run'));
  box.append(...spans, ...paragraph.poles, ...paragraph.names);
  if (note) placesBox.append(el('h3', '', `${lanes.map((lane) => lane.title).join(' · ')} `, el('small', '', note)));
  placesBox.append(box);
  paragraphs.push(paragraph);
}

/** Where each token ends, once a layout: poles then move without asking the page. */
function measurePlaces() {
  for (const paragraph of paragraphs) {
    const origin = paragraph.box.getBoundingClientRect();
    paragraph.width = origin.width;
    const ends = paragraph.spans.map((span) => [...span.getClientRects()].at(-1) ?? origin);
    const first = paragraph.spans[0]?.getClientRects()[0] ?? origin;
    paragraph.spots = [{ x: first.left, y: first.top }, ...ends.map((rect) => ({ x: rect.right, y: rect.top }))].map(({ x, y }) => ({ x: x - origin.left, y: y - origin.top - POLE_PX }));
  }
  drawPlaces();
}

function drawPlaces() {
  for (const paragraph of paragraphs) if (paragraph.spots) drawPoles(paragraph);
}

/** Tokens of a paragraph that a lane has written, null where it stands in another paragraph. */
function placeIn({ from, owner, spans }, lane) {
  const place = tokensShown(lane) - from;
  const parted = lane.text_of !== owner.method && place > lane.first_difference;
  return parted || place < 0 ? null : Math.min(place, spans.length);
}

function drawPoles(paragraph) {
  const { lanes, spans, poles, names, spots } = paragraph;
  const standing = [];
  const places = lanes.map((lane) => placeIn(paragraph, lane));
  places.forEach((place, i) => {
    poles[i].hidden = place === null;
    if (place === null) return;
    const spot = spots[place];
    poles[i].style.transform = `translate(${spot.x}px, ${spot.y}px)`;
    standing.push({ ...spot, title: lanes[i].title });
  });
  const reached = Math.max(0, ...places);
  for (let i = Math.min(reached, paragraph.reached); i < Math.max(reached, paragraph.reached); i++) spans[i].classList.toggle('tocome', i >= reached);
  paragraph.reached = reached;
  const labels = namesOf(standing, paragraph.width);
  names.forEach((node, i) => {
    const label = labels[i];
    node.hidden = !label;
    if (!label) return;
    node.textContent = label.text;
    node.style.transform = `translate(${label.x}px, ${label.y - 2}px)${label.isLeft ? ' translateX(-100%)' : ''}`;
  });
}

/** A name at each pole, left of it where the right is too narrow; names that would meet share one label, in their order. */
function namesOf(standing, width) {
  const labels = [];
  const size = (text) => text.length * NAME_LETTER_PX + 12;
  const place = (label) => {
    label.isLeft = label.from + size(label.text) > width && label.to > size(label.text);
    label.x = label.isLeft ? label.to : label.from;
    label.left = label.isLeft ? label.to - size(label.text) : label.from;
    return label;
  };
  for (const { x, y, title } of standing.sort((a, b) => a.y - b.y || a.x - b.x)) {
    const last = labels.at(-1);
    const label = place({ text: title, from: x, to: x, y });
    if (last && Math.abs(last.y - y) < 4 && label.left < last.left + size(last.text)) place(Object.assign(last, { text: `${last.text} · ${title}`, to: x }));
    else labels.push(label);
  }
  return labels;
}

// ---- stripfile: the text of the run as a drawing, word by word where the page has laid it out -------------------------

const UNDERLINE = { a: ['accepted-line', 2, ''], c: ['corrected-line', 4, ''], b: ['bonus-line', 3, '5 3'], t: ['discarded-line', 2, '1.5 2.5'], d: ['discarded-line', 1, '1.5 2.5'] };
const pen = document.createElement('canvas').getContext('2d');

/** The strip at the depth that is shown, whole, also what is scrolled out of sight. */
function drawnStrip() {
  const box = strip.getBoundingClientRect();
  const drawing = svg('g');
  const at = ({ left, top, right, bottom }) => ({ x: left - box.left, y: top - box.top, width: right - left, height: bottom - top });
  for (const chip of strip.querySelectorAll('.tk')) if (chip.checkVisibility()) drawGround(drawing, chip, at);
  for (const note of strip.querySelectorAll('.lift')) if (note.checkVisibility()) drawNote(drawing, note, at);
  for (const mark of strip.querySelectorAll('.ws.dot, .ws.nl, .ctl')) if (mark.checkVisibility()) drawMark(drawing, mark, at);
  const walker = document.createTreeWalker(strip, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) if (node.parentElement.checkVisibility()) drawWords(drawing, node, at);
  return { drawing, width: box.width, height: box.height };
}

/** Fill and line under a token, once for each line of text it stands on. */
function drawGround(drawing, chip, at) {
  const key = [...chip.classList].find((name) => name.length === 1 && name !== 'w' && name !== 'x');
  for (const rect of chip.getClientRects()) {
    const { x, y, width, height } = at(rect);
    if (chip.classList.contains('w') && (key === 'c' || key === 'b')) drawing.append(svg('rect', { x: x - 1, y, width: width + 2, height, rx: 3, fill: colour(key === 'c' ? 'corrected-tint' : 'bonus-tint') }));
    if (!UNDERLINE[key] || width < 2) continue;
    const [ink, thick, dash] = UNDERLINE[key];
    drawing.append(svg('line', { x1: x + 1, x2: x + width - 1, y1: y + height - thick / 2, y2: y + height - thick / 2, stroke: colour(ink), 'stroke-width': thick, ...(dash && { 'stroke-dasharray': dash }) }));
  }
}

/** The flagpole of a refusal and a hollow square for each draft that was never tested. */
function drawNote(drawing, note, at) {
  const { x, y, width, height } = at(note.getBoundingClientRect());
  const isTight = note.classList.contains('tight');
  const pole = note.classList.contains('lf') ? x + width - 0.5 : x + 0.5;
  if (!isTight) drawing.append(svg('line', { x1: pole, x2: pole, y1: y, y2: y + height, stroke: colour('corrected-line') }));
  for (const square of note.querySelectorAll('u')) {
    if (!square.checkVisibility()) continue;
    const place = at(square.getBoundingClientRect());
    drawing.append(svg('rect', { x: place.x + 0.5, y: place.y + 0.5, width: place.width - 1, height: place.height - 1, rx: 1, fill: 'none', stroke: colour('discarded-line') }));
  }
}

/** White space and control tokens, which have no letters of their own. */
function drawMark(drawing, mark, at) {
  const { x, y, width, height } = at(mark.getClientRects()[0] ?? mark.getBoundingClientRect());
  const middle = y + height / 2;
  if (mark.classList.contains('dot')) drawing.append(svg('circle', { cx: x + width / 2, cy: middle, r: 1.4, fill: colour('edge') }));
  else if (mark.classList.contains('nl')) drawing.append(svg('path', { d: `M${x + 13} ${middle - 4}v4.5h-9M${x + 6.8} ${middle - 2.4}l-3 2.9 3 2.9`, fill: 'none', stroke: colour('edge'), 'stroke-width': 1.4 }));
  else drawing.append(svg('rect', { x, y, width, height, rx: 4, fill: 'none', stroke: colour('hair') }));
}

/** Each word as wide as on the page, whatever letters the reader's machine has. */
function drawWords(drawing, node, at) {
  const style = getComputedStyle(node.parentElement);
  pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = pen.measureText('x');
  const isStruck = node.parentElement.closest('s') || node.parentElement.closest('.alt .tk.r');
  const range = document.createRange();
  for (const { index, 0: word } of node.data.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const rects = [...range.getClientRects()];
    if (!rects.length) continue;
    const pieces = rects.length === 1 ? [[word, rects[0]]] : letterByLetter(node, index, word);
    for (const [text, rect] of pieces) {
      const { x, y, width, height } = at(rect);
      drawing.append(svg('text', {
        x, y: y + (height * up) / (up + down), textLength: width, lengthAdjust: 'spacingAndGlyphs',
        fill: style.color, 'font-family': style.fontFamily, 'font-size': style.fontSize, 'font-weight': style.fontWeight,
      }, text));
      if (isStruck) drawing.append(svg('line', { x1: x, x2: x + width, y1: y + height * 0.56, y2: y + height * 0.56, stroke: colour('rejected-line'), 'stroke-width': 1.25 }));
    }
  }
}

/** A word that is broken over lines. */
function letterByLetter(node, from, word) {
  const range = document.createRange();
  let index = from;
  return [...word].flatMap((letter) => {
    range.setStart(node, index);
    range.setEnd(node, index += letter.length);
    return [...range.getClientRects()].slice(0, 1).map((rect) => [letter, rect]);
  });
}

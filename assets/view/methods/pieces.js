// ---- methods/pieces: what the drawings of the methods are made of ------------------------------------------------
// Notes of a step may come from a file that somebody wrote by hand, so each drawing checks what it reads.

const methodDrawings = {}; // kind of a note -> its drawing

const isCount = (value) => Number.isInteger(value) && value >= 0;
const isTextGrid = (rows) => Array.isArray(rows) && rows.every((row) => Array.isArray(row) && row.every((text) => typeof text === 'string'));

const countInWords = (number, noun, plural = `${noun}s`) => `${inWords(number)} ${number === 1 ? noun : plural}`;
const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const LONGEST_PHRASE = 48;

/** Words in quotes, for sentences: one line, not too long, and isolated, so that no script turns the sentence around. */
function phrase(tokens) {
  if (tokens.length === 1) return quoted(`\u2068${clipped(spoken(tokens[0]))}\u2069`);
  const text = tokens.map((token) => token.label || token.text).join('').replace(/\s+/g, ' ').trim();
  return quoted(`\u2068${clipped(text || 'space')}\u2069`);
}

function clipped(text) {
  const letters = Array.from(text);
  return letters.length > LONGEST_PHRASE ? `${letters.slice(0, LONGEST_PHRASE).join('')}…` : text;
}

/** Every token before a step, prompt first: the text that its drafter could look at. */
const tokensBefore = (entry) => [...run.start.prompt_texts.map((text) => ({ text })), ...run.entries.slice(0, entry.number - 1).flatMap(({ step }) => step.emitted)];

/** "two kept, one refused, one not tested" */
function fatesInWords(drafted) {
  const names = { accepted: 'kept', rejected: 'refused', discarded: 'not tested' };
  const counts = Object.entries(names).map(([fate, name]) => [drafted.filter((token) => token.fate === fate).length, name]).filter(([count]) => count);
  if (counts.length > 1) return counts.map(([count, name]) => `${inWords(count)} ${name}`).join(', ');
  const [[count, name]] = counts;
  return count === 1 ? name : count === 2 ? `both ${name}` : `all ${inWords(count)} ${name}`;
}

/** A word with the mark of its fate. */
function fatedWord(token, fate) {
  const { key } = FATES[fate];
  const text = word(token);
  return el('span', `mw ${key}`, mark(key), key === 'r' ? el('s', '', text) : text);
}

/** A line of words as they stand in the text, the first one cut off where more stands before it. */
function plainWords(tokens, isCut) {
  const line = el('span', 'words', ...(isCut ? ['… '] : []));
  tokens.forEach((token, i) => line.append(...(i && /^ \S/.test(token.text) ? [' '] : []), word(token)));
  return line;
}

/** A node on a grid of lanes: `along` counts in reading order, `lane` across. Narrow views turn the grid by style. */
function laneCell(lane, along, className, ...children) {
  const node = el('span', `cell ${className}`, ...children);
  node.style.setProperty('--lane', lane);
  node.style.setProperty('--along', along);
  return node;
}

/** What colours and hatchings mean. */
const drawingKey = (...entries) => el('ul', 'key', ...entries.map(([swatch, text]) => el('li', '', el('i', swatch), text)));

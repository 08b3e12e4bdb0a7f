// ---- strip: the text of the run, one span a step, appended and never drawn again ------------------------------
// Line = the draft guessed it. Fill = the target wrote it. All four depths share these nodes; the style sheet chooses.
// A leaf (class x) is a node that stands for a piece of the text: leaf._copy is what copying it gives.

const strip = $('.strip');
const viewport = $('.viewport');
const answer = $('.answer');
const RTL = /[\u0590-\u08FF\uFB1D-\uFDFF\uFE70-\uFEFC]/;
const SPACE = /\s/;
const WIDE = '\\u00A0\\u1680\\u2000-\\u200A\\u202F\\u205F\\u3000'; // spaces that are not the plain one
const ODD = '\\u0000-\\u0008\\u000B-\\u001F\\u007F-\\u009F\\u00AD\\u200B\\u200E\\u200F\\u2028-\\u202E\\u2060-\\u206F\\uFEFF\\uFFF9-\\uFFFB';
const PIECES = new RegExp(`(\\n)|(\\t)|( +)|([${WIDE}])|([${ODD}])|([^\\n\\t ${WIDE}${ODD}]+)`, 'gu');
const MAX_SQUARES = 6;
const MAX_NOTE_LETTERS = 16; // longer refused words end in … (see .lift s)

let lastChar;      // last character of the answer so far: decides whether a space would be seen
let openNote;      // the newest note, its gap not yet decided
let lettersSince;  // letters written since that note's word
let numEmitted;
let unsettled;     // notes whose place in the box has to be looked at after the next layout

function clearStrip() {
  strip.replaceChildren();
  strip.removeAttribute('aria-activedescendant');
  strip.removeAttribute('dir');
  strip.classList.remove('mono');
  answer.textContent = '';
  lastChar = '';
  openNote = null;
  lettersSince = 0;
  numEmitted = 0;
  unsettled = [];
}

// -- text of one token --

/** Cuts a token's text into what can be read as it is and what has to be drawn: all white space but single spaces. */
function pieces(text, before) {
  const out = [];
  let end = 0;
  for (const [all, newline, tab, spaces, wide, odd] of text.matchAll(PIECES)) {
    end += all.length;
    const isPlainSpace = spaces === ' ' && before && !SPACE.test(before) && end < text.length && !SPACE.test(text[end]);
    const kind = newline ? 'newline' : tab ? 'tab' : wide || (spaces && !isPlainSpace) ? 'space' : odd ? 'odd' : 'plain';
    out.push({ kind, text: all });
    before = all.at(-1);
  }
  return out;
}

function leaf(className, shown, copy) {
  const node = el('span', `x ${className}`.trim(), shown);
  node._copy = copy;
  return node;
}

/** Leaves for one token. `flat` is for words outside the text (notes, cards, rows): there a line end breaks no line. */
function leaves(token, before, flat = false) {
  if (token.label) return [leaf('ctl', token.label, token.text)];
  if (token.text === '') return [leaf('ctl', 'no text', '')];
  const out = [];
  let plain = '';
  const flush = () => { if (plain) out.push(leaf('', plain, plain)); plain = ''; };
  for (const { kind, text } of pieces(token.text, before)) {
    if (kind === 'plain') { plain += text; continue; }
    flush();
    if (kind === 'newline') out.push(leaf('ws nl', flat ? '' : text, text));
    else if (kind === 'tab') out.push(leaf('ws tab', flat ? '' : text, text));
    else if (kind === 'space') for (const char of text) out.push(leaf('ws dot', char, char));
    else out.push(leaf('ctl', `U+${text.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`, text));
  }
  flush();
  return out;
}

/** A token drawn outside the text, its leading space left out. */
function word(token, className = '') {
  const trimmed = /^ \S/.test(token.text) ? { ...token, text: token.text.slice(1) } : token;
  const node = el('bdi', className);
  node.append(...leaves(trimmed, 'x', true));
  return node;
}

/** The same for speech and labels. */
function spoken(token) {
  if (token.label) return token.label;
  const names = { '': 'no text', '\n': 'line end', '\t': 'tab' };
  return names[token.text] ?? (token.text.trim() || 'space');
}

// -- one step --

/** Sorts refused and discarded drafts by the place in the sentence where they were tried. */
function refusals(step) {
  const depths = [];
  const at = new Map();
  const discarded = [];
  step.drafted.forEach((token, i) => {
    depths[i] = token.parent < 0 ? 0 : depths[token.parent] + 1;
    if (token.fate === 'discarded') discarded.push(token);
    if (token.fate !== 'rejected') return;
    if (!at.has(depths[i])) at.set(depths[i], []);
    at.get(depths[i]).push(token);
  });
  return { at, discarded };
}

function stepSentence(step) {
  const said = (tokens) => tokens.map(spoken).join(' ');
  const of = (origin) => step.emitted.filter((token) => token.origin === origin);
  const refused = step.drafted.filter((token) => token.fate === 'rejected');
  const parts = [`Step ${step.index}.`, ...(step.note?.kind === 'merged' ? [step.note.text] : [])];
  const say = (lead, tokens) => { if (tokens.length) parts.push(`${lead}: ${said(tokens)}.`); };
  say('Kept', of('accepted'));
  say('Refused', refused);
  say('Written instead', of('corrected'));
  say('One more from the target', of('bonus'));
  say(step.num_drafted == null ? 'Written by the target' : 'Written by the target alone', of('target'));
  return parts.join(' ');
}

/** Appends one step to the text. Returns what selection, card and tooltip need to know about it. */
function appendStep(step) {
  const span = el('span', 'st');
  span.id = `sv-step-${step.index}`;
  span.setAttribute('role', 'option');
  span.setAttribute('aria-selected', 'false');
  span.setAttribute('aria-label', stepSentence(step));
  const entry = { step, span, chips: [], firstToken: numEmitted };
  span._entry = entry;

  if (step.note?.kind === 'merged') span.prepend(verseNumber(`≥ ${step.note.data.passes} steps`));
  const { at, discarded } = refusals(step);
  const kept = step.drafted.filter((token) => token.fate === 'accepted');
  let line = span; // where the next chip goes: the step, or a right-to-left run inside it
  step.emitted.forEach((token, place) => {
    const isLast = place === step.emitted.length - 1;
    const refused = at.get(place) ?? [];
    const inVain = isLast ? [...refused, ...discarded] : refused;
    const ownFill = Boolean(FATES[token.origin].own);
    // A space before a step, a filled word or a refused word carries no line, so that nothing dangles at line ends.
    const space = /^ \S/.test(token.text) && !token.label && lastChar && !SPACE.test(lastChar)
      && (place === 0 || ownFill || inVain.length > 0);

    if (RTL.test(token.text)) { if (line === span) { line = el('bdi'); span.append(line); } } else line = span;
    if (inVain.length) line.append(inlineDrafts(inVain, entry, space && place === 0));
    if (space) {
      const gap = leaf('sp', ' ', ' ');
      if (place > 0) line.append(gap);
      else { strip.append(gap); if (step.index % 5 === 0) span.prepend(verseNumber(step.index)); }
    }
    const shown = space ? { ...token, text: token.text.slice(1) } : token;
    const chip = emittedChip(shown, space ? ' ' : lastChar, token, ownFill);
    chip._token = { entry, place, token, drafted: token.origin === 'accepted' ? kept[place] : undefined, refused };
    if (!space) chip.classList.add('nosp');
    line.append(chip);
    entry.chips.push(chip);
    if (inVain.length) addNote(chip, refused, isLast ? discarded : [], entry, token);
    else lettersSince += token.text.length;
    if (token.text) lastChar = token.text.at(-1);
    numEmitted += 1;
  });
  settleGap();
  strip.append(span);
  chooseDirection(step);
  return entry;
}

/** The last token of a step, once it is known how it came about. */
function retellOwn(entry, origin) {
  const chip = entry.chips.at(-1);
  const token = entry.step.emitted.at(-1);
  chip.classList.remove(FATES[token.origin].key, 'w');
  chip.classList.add(FATES[origin].key, ...(FATES[origin].own ? ['w'] : []));
  token.origin = origin;
}

/** Tokens that a serving engine wrote with the prompt, before its first step: text without a step of their own. */
function appendOpening(tokens) {
  for (const token of tokens) {
    strip.append(emittedChip(token, lastChar, token, false));
    if (token.text) lastChar = token.text.at(-1);
    lettersSince += token.text.length;
    numEmitted += 1;
  }
}

function emittedChip(shown, before, token, ownFill) {
  const chip = el('span', `tk ${FATES[token.origin].key}${ownFill ? ' w' : ''}`);
  const drawn = leaves(shown, before);
  if (drawn.length === 1 && drawn[0].className === 'x') { // the common case needs one node, not two
    chip.classList.add('x');
    chip.textContent = shown.text;
    chip._copy = shown.text;
  } else chip.append(...drawn);
  return chip;
}

function verseNumber(text) {
  const node = el('i', 'vn', String(text));
  node.setAttribute('aria-hidden', 'true');
  return node;
}

/** Refused and untested words in the line, for the depth "All". They are no part of the text and are never copied. */
function inlineDrafts(tokens, entry, spaceIsBefore) {
  const box = el('span', 'alt');
  box.setAttribute('aria-hidden', 'true');
  tokens.forEach((token, i) => {
    if (/^ \S/.test(token.text) && !(i === 0 && spaceIsBefore)) box.append(' ');
    const chip = word(token, `tk ${FATES[token.fate].key}`);
    chip._token = { entry, drafted: token };
    box.append(chip);
  });
  if (spaceIsBefore) box.append(' ');
  return box;
}

/** Right-to-left answers run from the right as a whole; the first letter decides. */
function chooseDirection(step) {
  if (strip.dir) return;
  const letter = step.emitted.map((token) => token.text).join('').match(/\p{L}/u);
  if (letter) strip.dir = RTL.test(letter[0]) ? 'rtl' : 'ltr';
}

// -- notes: the refused word above the one that replaced it. They take no room from the text: a note that its
// neighbours leave no room shrinks to a cross, and the word it stood for is in the tooltip, the card and "All" --

function addNote(chip, refused, discarded, entry, token) {
  settleGap(true);
  const lift = el('span', 'lift');
  lift.setAttribute('aria-hidden', 'true');
  let letters = 0;
  if (refused.length) {
    const struck = el('s');
    const text = spoken(refused[0]);
    // a lone mark would hide under its own strike: thin spaces make it seen
    if (!refused[0].label && text.length === 1 && text === refused[0].text.trim()) struck.append(`\u2009${text}\u2009`);
    else struck.append(word(refused[0]));
    lift.append(struck);
    letters = Math.min(text.length, MAX_NOTE_LETTERS) + (refused[0].label ? 4 : 1); // a label has a box and wider letters
    if (refused.length > 1) { lift.append(el('em', '', `+${refused.length - 1}`)); letters += 3; }
    lift._token = { entry, drafted: refused[0], siblings: refused };
  } else lift._token = { entry, drafted: discarded[0], siblings: discarded };
  const squares = Math.min(discarded.length, MAX_SQUARES);
  if (squares) {
    const row = el('i');
    for (let i = 0; i < squares; i++) row.append(el('u'));
    lift.append(row);
    if (discarded.length > squares) { lift.append(el('em', 'more', `+${discarded.length - squares}`)); letters += 3; }
  }
  lift.append(el('span', 'brief', refused.length ? '×' : el('u')));
  chip.append(lift);
  const own = spoken(token).length;
  openNote = { chip, lift, letters, squares, numDiscarded: discarded.length, own, roomLeft: lettersSince, previous: openNote };
  unsettled.push(openNote);
  if (openNote.previous) openNote.previous.previous = null; // keep no chain of all notes
  lettersSince = 0;
}

/** Decides, once, how the newest note hangs: to the right if the next words leave room, else to the left, else with its
    squares folded, else as a cross. */
function settleGap(nextNoteIsHere = false) {
  const note = openNote;
  if (!note || note.settled || (lettersSince === 0 && !nextNoteIsHere)) return;
  note.settled = true;
  let fits = hangsRight(note) || hangsLeft(note);
  if (!fits && note.squares > 1) { foldSquares(note); fits = hangsRight(note) || hangsLeft(note); }
  if (!fits) { note.lift.classList.add('tight'); note.over = 0; }
  if (note.lift.classList.contains('lf')) unsettled.push(note);
}

/** Whether the words after a note's own leave it room. */
function hangsRight(note) {
  const over = note.letters * 6.6 + note.squares * 8 + 12 - note.own * 9;
  note.over = Math.max(0, over);
  return lettersSince * 8 >= over;
}

function hangsLeft(note) {
  const { previous } = note;
  const taken = previous && !previous.lift.classList.contains('lf') ? previous.over ?? 0 : 0;
  const fits = note.roomLeft * 8 - taken >= note.over;
  if (fits) note.lift.classList.add('lf');
  return fits;
}

/** One square and a number for many squares: where refusals follow each other, the sentence would fall apart. */
function foldSquares(note) {
  const number = String(note.numDiscarded);
  $('i', note.lift).replaceChildren(el('u'), el('em', '', number));
  $('.more', note.lift)?.remove();
  note.letters += number.length - (note.numDiscarded > note.squares ? 3 : 0);
  note.squares = 1;
}

/** Turns or shrinks notes that would leave the box. Reads all places first, then writes: the page is laid out once. */
function keepNotesInside(notes) {
  const box = viewport.getBoundingClientRect();
  const places = notes.map(({ lift }) => lift.getBoundingClientRect());
  notes.forEach(({ lift, chip }, i) => {
    const { left, right, width } = places[i];
    if (!width || lift.classList.contains('tight')) return; // not shown at this depth, or small already
    if (lift.classList.contains('lf')) { if (left < box.left) lift.classList.add('tight'); return; }
    if (right <= box.right - 4) return;
    const before = places[i - 1];
    const onOneLine = before && Math.abs(before.top - places[i].top) < 4;
    const turnedLeft = chip.getBoundingClientRect().right - width;
    lift.classList.add(turnedLeft > (onOneLine ? before.right : box.left) ? 'lf' : 'tight');
  });
}

// -- copying --

/** The text behind a selection: real characters for every drawn space, label and line end; notes left out. */
function copiedText(range) {
  let out = '';
  for (const node of strip.querySelectorAll('.x')) {
    if (node.closest('.alt, .lift') || !range.intersectsNode(node)) continue;
    const shown = node.firstChild?.nodeType === Node.TEXT_NODE ? node.firstChild : null;
    const from = shown && range.startContainer === shown ? range.startOffset : 0;
    const to = shown && range.endContainer === shown ? range.endOffset : shown?.data.length ?? 1;
    if (from >= to) continue;
    out += shown?.data === node._copy ? node._copy.slice(from, to) : node._copy;
  }
  return out;
}

strip.addEventListener('copy', (event) => {
  const selection = getSelection();
  if (!selection.rangeCount || !strip.contains(selection.getRangeAt(0).commonAncestorContainer)) return;
  event.clipboardData.setData('text/plain', copiedText(selection.getRangeAt(0)));
  event.preventDefault();
});

// -- the depth "Steps": one row a step, built when it is first looked at --

const ledgerBox = $('.ledgerbox');
let ledgerRows;

function clearLedger() {
  ledgerRows = el('tbody');
  const head = el('tr');
  for (const [name, className] of [['step', ''], ['drafted', ''], ['then', ''], ['tokens', 'n'], ['time', 'n']]) {
    const cell = el('th', className, name);
    cell.scope = 'col';
    head.append(cell);
  }
  ledgerBox.replaceChildren(el('table', 'ledger', el('thead', '', head), ledgerRows));
}

/** All rows there are, of which the first `count` are seen. */
function extendLedger(entries, count = entries.length) {
  for (let i = ledgerRows.childElementCount; i < entries.length; i++) ledgerRows.append(ledgerRow(entries[i]));
  for (const row of ledgerRows.children) row.hidden = row._entry.number > count;
}

function ledgerRow(entry) {
  const { step } = entry;
  const drafted = el('td');
  for (const token of step.drafted) drafted.append(ledgerWord(token, token.fate), ' ');
  if (!step.drafted.length && step.num_drafted == null) {
    for (const token of step.emitted) if (token.origin === 'accepted') drafted.append(ledgerWord(token, 'accepted'), ' ');
  }
  const own = el('td', 'own');
  for (const token of step.emitted) if (token.origin !== 'accepted') own.append(ledgerWord(token, token.origin));
  const row = el('tr', '', el('td', '', String(step.index)), drafted, own,
    el('td', 'n', String(step.emitted.length)), el('td', 'n', milliseconds(step.verify_s + step.draft_s + step.other_s)));
  row._entry = entry;
  return row;
}

function ledgerWord(token, fate) {
  const { key, own } = FATES[fate];
  const text = word(token, own ? 'own' : '');
  const node = el('span', `q ${key}`, mark(key), key === 'r' ? el('s', '', text) : text);
  node.title = fate;
  return node;
}

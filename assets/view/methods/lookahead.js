// ---- methods/lookahead: the window of guesses and the pool; Jacobi, whose window is the draft ----------------------

const WIDEST_WINDOW = 24; // columns, and rows; a run has 16 and 7 at most

function drawLookahead(entry, data) {
  return 'num_start' in data ? drawJacobi(entry, data) : drawWindow(entry, data);
}

function drawWindow(entry, data) {
  const { window_texts: rows, answers, guesses, num_warm: numWarm, pool_size: size } = data;
  const { step } = entry;
  if (!isTextGrid(rows) || rows.length > WIDEST_WINDOW || rows.some((row) => row.length !== rows[0].length || row.length > WIDEST_WINDOW)) return null;
  const tried = poolGuesses(step, guesses);
  if (step.drafted.length && !tried.length) return null;
  const last = tokensBefore(entry).slice(-1);
  const box = el('div', 'lookahead');
  if (rows.length && rows[0].length) {
    const said = isTextGrid([answers]) ? answers : [];
    box.append(el('h4', '', 'The window: phrases that the target writes on beside the check'), windowGrid(rows, said, isCount(numWarm) ? numWarm : 0));
  }
  box.append(el('h4', '', `The pool: what followed ${phrase(last)} before`), poolList(step, tried, size));
  const found = step.drafted.length
    ? `The pool knew ${countInWords(tried.length, 'phrase')} that followed ${phrase(last)}: ${fatesInWords(step.drafted)}.`
    : `Nothing in the pool follows ${phrase(last)}: no draft. The window guesses on meanwhile.`;
  return { finding: found, box };
}

/** A column of the window is a phrase that begins so many places ahead; the target's answer makes it longer by one. */
function windowGrid(rows, answers, numWarm) {
  const [depth, width] = [rows.length, rows[0].length];
  const grid = el('div', 'stair');
  const put = (row, column, className, ...children) => {
    const node = el('span', className, ...children);
    node.style.gridArea = `${row} / ${column}`;
    grid.append(node);
  };
  for (let place = 0; place < width + depth; place++) put(1, place + 1, 'head', place ? `+${place}` : 'now');
  for (let c = 0; c < width; c++) {
    for (let r = 0; r < depth; r++) put(c + 2, c + r + 1, c + r ? 'guess' : 'guess now', word({ text: rows[r][c] }));
    if (c < answers.length) {
      put(c + 2, c + depth + 1, 'guess answer', word({ text: answers[c] }));
      put(c + 2, c + depth + 2, 'to', c < numWarm ? '→ pool' : '');
    }
  }
  const key = [['guess', 'guessed before'], ['guess answer', 'added by this pass']];
  return el('div', '', grid, drawingKey(...(answers.length ? key : key.slice(0, 1))));
}

function poolList(step, guesses, size) {
  const list = el('ul', 'pool');
  for (const tokens of guesses) list.append(el('li', '', ...tokens.map((token) => fatedWord(token, token.fate)), el('small', '', fatesInWords(tokens))));
  if (!list.childElementCount) list.append(el('li', 'none', 'nothing'));
  const box = el('div', '', list, ownLine(step));
  if (isCount(size)) box.append(el('p', 'note', `${counted(size, 'phrase')} in the pool by now.`));
  return box;
}

/** Of each guess in a note its drafted tokens. */
const poolGuesses = (step, guesses) => (Array.isArray(guesses) ? guesses : []).slice(0, WIDEST_WINDOW).filter(Array.isArray).map((ids) => guessTokens(step, ids)).filter((tokens) => tokens.length);

/** The drafted tokens of one guess: guesses share their beginnings, so each is a path through the draft. */
function guessTokens(step, ids) {
  const tokens = [];
  let parent = -1;
  for (const id of ids) {
    const at = step.drafted.findIndex((token) => token.parent === parent && token.token_id === id);
    if (at < 0) break;
    tokens.push(step.drafted[at]);
    parent = at;
  }
  return tokens;
}

/** Guesses over what the target said of them, which is what is guessed next. */
function drawJacobi(entry, { num_start: numStart }) {
  const { step } = entry;
  const { drafted, emitted } = step;
  if (!drafted.length || !isCount(numStart)) return null;
  const next = run.entries[entry.number]?.step.drafted ?? [];
  const grid = el('div', 'lanes jacobi');
  grid.append(laneCell(2, 1, 'head', 'guessed'), laneCell(4, 1, 'head', 'the target says'));
  drafted.forEach((token, i) => {
    const isStart = i >= drafted.length - numStart;
    grid.append(laneCell(2, i + 2, isStart ? 'source start' : 'source', fatedWord(token, token.fate)), laneCell(3, i + 2, 'sign arrow'));
  });
  emitted.forEach((token, i) => grid.append(laneCell(4, i + 2, 'own', fatedWord(token, token.origin))));
  next.slice(0, drafted.length + 1 - emitted.length).forEach((token, i) => grid.append(laneCell(4, emitted.length + i + 2, 'again', word(token))));
  const start = !numStart ? '' : numStart >= drafted.length ? ' They are mere start values.' : ` The last ${numStart === 1 ? 'is a mere start value' : `${inWords(numStart)} are mere start values`}.`;
  const note = next.length ? 'What stands behind the target’s own word, in grey, is guessed in the next step.' : '';
  return {
    finding: `${asSentence(countInWords(drafted.length, 'place'))} guessed at once: ${fatesInWords(drafted)}.${start}`,
    box: el('div', '', grid, el('p', 'note', note)),
  };
}

methodDrawings.lookahead = drawLookahead;

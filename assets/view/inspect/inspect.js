// ---- inspect: one step under the lens, and the replay's controls ------------------------------------------------------

const inspectBox = $('.panel[data-panel=inspect]');
const lens = $('.insp', inspectBox);
const MOST_UNTESTED = 6; // more are one row a place
const CONTEXT_CHARS = 70;

let lensEntry = null;        // the entry that is drawn
let lensRows = [];           // the rows of its table: { place, drafted or token, button, node }
let chosenRow = 0;          // the row whose odds are shown
let lensWidth = 0;       // of the pictures; asking the page at every step would lay it out at every step
let wantedToken = null;  // the token the visitor came for

/** Comes with the visitor from the strip or the card: the token to look at first. */
function chooseToken(token) {
  wantedToken = token?.token?.origin === 'corrected' ? null : token ?? null; // the refusal says more of its own accord
}

function drawInspect() {
  const slot = $('.mapslot');
  if (mapBox.parentNode !== slot) return enterInspect(slot);
  if (!selected && replay.number === null && run.entries?.length) return select(worthALook(), { byVisitor: false });
  drawMap(run.entries ?? [], selected, hovered);
  drawTransport();
  const entry = run.entries?.[replayPosition() - 1];
  if (entry !== lensEntry || wantedToken) drawStep(entry);
  drawPhase(entry);
}

function enterInspect(slot) {
  const hadFocus = mapBox === document.activeElement;
  slot.append(mapBox);
  if (hadFocus) mapBox.focus();
  measureLens();
  if (replay.number !== null && !replay.playing && selected && selected !== replay.number) return seekReplay(selected);
  if (replay.number !== null && replay.number !== selected) select(replay.number, { byVisitor: false });
  else drawInspect();
}

/** Where nothing is chosen: the first refusal that says most, else the first draft, else the first step. */
function worthALook() {
  const entries = run.entries ?? [];
  const find = (test) => entries.findIndex(({ step }) => test(step)) + 1;
  return find((step) => step.num_accepted && step.drafted.some((token) => token.residual_top))
    || find((step) => step.num_accepted && ownToken(step)?.origin === 'corrected') || find((step) => step.drafted.length) || Math.min(1, entries.length);
}

// -- transport --

function drawTransport() {
  const ready = canReplay();
  const phase = replay.number === null ? COMMIT : replay.phase;
  for (const button of $('.transport').querySelectorAll('.keys button, .phases button')) button.disabled = !ready;
  $('.play').setAttribute('aria-label', replay.playing ? 'Pause' : 'Play');
  $('.play').classList.toggle('moving', replay.playing);
  for (const button of $('.phases').children) {
    const own = Number(button.dataset.phase);
    button.className = own === phase ? 'here' : own < phase ? 'done' : '';
    button.setAttribute('aria-pressed', String(own === phase));
  }
  for (const button of $('.speeds').children) button.setAttribute('aria-pressed', String(button._speed === replay.speed));
  drawClocks();
  const last = run.entries?.[Math.min(replayPosition(), stepsShown()) - 1];
  if (!ready) $('.sofar').textContent = run.phase === 'running' ? 'The run is still going on. It can be replayed once it is done.' : '';
  else if (!last) $('.sofar').textContent = 'Nothing written yet.';
  else {
    const { num_tokens, alpha, decode_tokens_per_s } = last.counters;
    const kept = alpha == null ? '' : ` · per-token acceptance ${fixed(alpha, 3)}`;
    $('.sofar').textContent = `Up to step ${last.step.index} of ${run.entries.length}: ${counted(num_tokens, 'token')}${kept} · ${fixed(decode_tokens_per_s, 1)} tokens a second`;
  }
  if (replay.playing) speak($('.sofar').textContent);
}

const ofChosen = (words) => { const token = lensRows[chosenRow]?.drafted; return token?.target_prob == null ? '' : words(token); };

// What stands over the columns: words first, formula second, the chosen token's own numbers third.
Object.assign(WORDS, {
  lens_q: {
    name: 'draft q', formula: 'q(x)', numbers: () => ofChosen((token) => `= ${isChosen(token) ? '1, taken as certain' : fixed(token.draft_prob, 3)}`),
    words: 'How likely the draft found this token at this place.', more: 'A guess that was chosen, not drawn, has no q of its own: the rule takes it as certain.', unit: 'probability, 0 to 1',
  },
  lens_p: {
    name: 'target p', formula: 'p(x)', numbers: () => ofChosen((token) => `= ${fixed(token.target_prob, 3)}`),
    words: 'How likely the target finds this token at this place.', more: 'After a refusal at the same place p is what was left of it. In a greedy run it is the target’s own at temperature 1, for information only.', unit: 'probability, 0 to 1',
  },
  lens_chance: {
    name: 'chance to keep', formula: 'min(1, p / q)', numbers: () => ofChosen((token) => (isOfBlock(token) ? `= ${fixed(token.accept_prob, 3)}; in a block h = ${fixed(token.block_prob, 3)} at p = ${fixed(token.prefix_prob, 3)}` : `= ${fixed(token.accept_prob, 3)}`)),
    words: 'How often the test keeps this token. What the target likes at least as much as the draft is always kept.', more: 'A coin, anywhere from 0 to 1, keeps the token if it falls under this. So the text follows the target’s own distribution. A draft judged as a block has h in its place: the longest beginning whose own coin falls under its h is kept, whatever coins before it did.', unit: 'probability, 0 to 1',
  },
});

function buildTerms() {
  for (const cell of lens.querySelectorAll('[data-term]')) cell.append(term(`lens_${cell.dataset.term}`));
}

function buildTransport() {
  for (const speed of REPLAY_SPEEDS) {
    const button = el('button', '', speed === 'slow' ? 'slow motion' : `${speed}×`);
    button.type = 'button';
    button._speed = speed;
    button.addEventListener('click', () => setReplaySpeed(speed));
    $('.speeds').append(button);
  }
  $('.back', inspectBox).addEventListener('click', () => { replayStepBy(-1); speakStep(); });
  $('.on', inspectBox).addEventListener('click', () => { replayStepBy(1); speakStep(); });
  $('.play').addEventListener('click', toggleReplay);
  $('.phases').addEventListener('click', (event) => {
    const button = event.target.closest('button');
    if (button && replayPosition()) { haltReplay(); seekReplay(replayPosition(), Number(button.dataset.phase)); speakStep(); }
  });
}

/** Said once for each move of the visitor; the map, a slider, says its own value. */
function speakStep() {
  if (document.activeElement !== mapBox) speak($('.lead', lens).textContent, true);
}

/** Pictures follow the width of their box; what was chosen stays chosen. */
function measureLens() {
  const width = lens.clientWidth;
  if (!width || width === lensWidth) return;
  lensWidth = width;
  if (lensEntry && run.entries[lensEntry.number - 1] === lensEntry) drawStep(lensEntry, chosenRow); // not one of an earlier run
}

// -- one step --

function drawStep(entry, row) {
  lensEntry = entry;
  lens.classList.toggle('empty', !entry);
  if (!entry) { lensRows = []; return; }
  const { step } = entry;
  $('.gist', lens).textContent = stepGist(step);
  drawContext(entry);
  lensRows = tokenRows(step);
  const hasCoins = step.drafted.some(hasCoin);
  $('.tbl', lens).classList.toggle('no-coins', !hasCoins);
  $('.tbl th.coins', lens).textContent = hasCoins ? 'the coin, 0 to 1' : 'the test';
  $('.tokens tbody', lens).replaceChildren(...lensRows.map(tableRow));
  const at = lensRows.findIndex(({ drafted, token }) => wantedToken && [drafted, token].some((one) => one && [wantedToken.drafted, wantedToken.token].includes(one)));
  wantedToken = null;
  chooseRow(row ?? (at >= 0 ? at : firstRow(step)));
  drawFigures(entry);
}

/** Words and marks of what the phase has not reached stay unseen; nothing moves when they come. */
function drawPhase(entry) {
  const phase = replay.number === null ? COMMIT : replay.phase;
  lens.dataset.phase = phase;
  if (entry) {
    $('.lead', lens).textContent = stepHeadline(entry.step, phase);
    if (entry.step.cache) $('.ruler h2', lens).textContent = phase < COMMIT ? 'The cache: written ahead' : rulerTitle(entry.step);
  }
  else if (canReplay()) [$('.lead', lens).textContent, $('.gist', lens).textContent] = ['Before the first step', `The prompt has ${counted(run.start.prompt_ids.length, 'token')}, and nothing is written yet.`];
  else [$('.lead', lens).textContent, $('.gist', lens).textContent] = ['No step yet', 'Press Run on the Watch tab; a step can be looked at as soon as it is there.'];
}

/** The step where it stands in the text, with all that was drafted. */
function drawContext({ step, number }) {
  let before = '';
  for (let i = number - 2; i >= 0 && before.length < CONTEXT_CHARS; i--) before = run.entries[i].step.emitted.map((token) => token.text).join('') + before;
  const cut = before.length > CONTEXT_CHARS;
  const line = el('bdi', '', cut ? `… ${before.slice(-CONTEXT_CHARS).replace(/^\S*\s/, '')}` : before);
  const place = (token, className) => {
    if (/^ \S/.test(token.text)) line.append(' ');
    line.append(word(token, `tk ${className}`));
  };
  const { at, discarded } = refusals(step);
  step.emitted.forEach((token, i) => {
    for (const one of at.get(i) ?? []) place(one, 'r');
    if (i === step.emitted.length - 1) for (const one of discarded.slice(0, MOST_UNTESTED)) place(one, 'd');
    place(token, FATES[token.origin].key + (FATES[token.origin].own ? ' w' : ''));
  });
  if (number < run.entries.length) line.append(' …');
  $('.ctx', lens).replaceChildren(line);
}

/** By place: what was tried there, the target's own token where the walk ended, what was never tested. */
function tokenRows(step) {
  const places = placesOf(step.drafted);
  const untested = step.drafted.filter((token) => token.fate === 'discarded' && !isOfBlock(token));
  const out = [];
  const last = Math.max(step.emitted.length - 1, ...places);
  for (let place = 0; place <= last; place++) {
    const here = step.drafted.filter((token, i) => places[i] === place);
    for (const drafted of here.filter((token) => token.fate !== 'discarded' || isOfBlock(token))) out.push({ place, drafted });
    const token = step.emitted[place];
    if (token && (token.origin !== 'accepted' || !here.length)) out.push({ place, token });
    const rest = here.filter((one) => one.fate === 'discarded' && !isOfBlock(one));
    if (untested.length <= MOST_UNTESTED) for (const drafted of rest) out.push({ place, drafted });
    else if (rest.length) out.push({ place, many: rest });
  }
  return out;
}

/** The last refusal says most; else the first drafted token; else the target's own. */
function firstRow(step) {
  const last = lensRows.findLastIndex((row) => row.drafted?.fate === 'rejected' && row.place === step.num_accepted);
  return last >= 0 ? last : Math.max(0, lensRows.findIndex((row) => row.drafted && row.drafted.fate !== 'discarded'));
}

function tableRow(row) {
  const { step } = lensEntry;
  const { place, drafted, token, many } = row;
  const cell = (className, ...content) => el('td', className, ...content);
  const fate = many ? 'discarded' : drafted?.fate ?? token.origin;
  const { key, own } = FATES[fate];
  const name = el('td', 'tok', mark(key));
  if (many) name.append(el('span', 'few', counted(many.length, 'more')));
  else {
    row.button = el('button', `pick ${key}`, word(drafted ?? token, own ? 'own' : ''));
    row.button.type = 'button';
    name.append(row.button);
  }
  const p = drafted ? drafted.target_prob : token && isDrawnFromRest(token) ? null : token?.target_prob;
  const q = drafted && step.drafted.some(isChosen) ? 'chosen' : fixed(drafted?.draft_prob, 2);
  const coinCell = cell('coins');
  if (drafted && hasCoin(drafted)) coinCell.append(el('span', 'from-verify', coin(drafted, 160)));
  else if (drafted && drafted.fate !== 'discarded') coinCell.append(el('small', 'from-commit', outcome(drafted)));
  const words = many ? `Never tested: ${many.slice(0, 8).map(spoken).join(', ')}${many.length > 8 ? ' …' : ''}` : drafted ? verdictWords(drafted, step) : originWords(token, step);
  row.node = el('tr', `${many ? '' : 'one'}${token ? ' from-commit' : ''}`,
    cell('n roomy', String(place + 1)), name, cell('n', q), cell('n', el('span', 'from-verify', fixed(p, 2))),
    cell('n roomy chance', el('span', 'from-verify', drafted && hasCoin(drafted) ? fixed(coinChance(drafted), 2) : NO_VALUE)), coinCell, cell('say roomy', el('span', 'from-commit', words)));
  if (!many) row.node.addEventListener('click', () => { chooseRow(lensRows.indexOf(row)); row.button.focus({ preventScroll: true }); });
  return row.node;
}

function chooseRow(index) {
  chosenRow = index;
  lensRows.forEach((row, i) => {
    row.node.classList.toggle('on', i === index);
    row.button?.setAttribute('aria-pressed', String(i === index));
  });
  drawOddsOf(lensRows[index]);
}

/** To the next row up or down that is one token. */
function chooseBy(change) {
  let to = chosenRow + change;
  while (lensRows[to]?.many) to += change;
  if (!lensRows[to]) return;
  chooseRow(to);
  lensRows[to].button.focus({ preventScroll: true });
}

// -- pictures --

function drawOddsOf(row) {
  const box = $('.odds', lens);
  const { step } = lensEntry;
  const { drafted, token, place } = row;
  const own = ownToken(step);
  const isLast = drafted && drafted === refusedAtEnd(step).at(-1);
  const has = drafted && drafted.fate !== 'discarded' && (drafted.target_top || drafted.draft_top);
  $('h2', box).textContent = drafted && hasCoin(drafted) ? `Place ${place + 1}: luck or match?` : `Place ${place + 1}`;
  const words = [drafted ? oddsWords(drafted, step) : ownOdds(token, step)];
  if (drafted && drafted.fate !== 'discarded' && !has) words.push(prose(withoutDetail()));
  $('.say', box).replaceChildren(...words);
  $('.keyline', box).replaceChildren(...(has ? oddsKey(drafted) : []));
  $('figure', box).replaceChildren(...(has && lensWidth ? [drawOdds(lensWidth, drafted, own, isLast)] : []));
  $('.cap', box).textContent = has ? restWords(drafted, own, isLast) : '';
}

function ownOdds(token, step) {
  const words = prose(originWords(token, step));
  if (token.target_prob != null) words.append(' The chance of ', el('bdi', '', quotedToken(token)), isDrawnFromRest(token) ? ' in what the target had left was ' : ' was ', chanceWords(token.target_prob), '.');
  return words;
}

const withoutDetail = () => (run.mode === 'recorded'
  ? 'This run was recorded without the likeliest tokens. Made again with “Record likeliest tokens” under More settings, it shows here what both models thought.'
  : 'Switch on “Record likeliest tokens” under More settings and run again to see here what both models thought.');

function drawFigures(entry) {
  const { step } = entry;
  const width = lensWidth;
  if (!width) return;
  const cost = $('.cost', lens);
  $('figure', cost).replaceChildren(drawCost(Math.min(width, width > 760 ? width - 304 : width), step, run.plain));
  $('.keyline', cost).replaceChildren(...costKey(step));
  $('.say', cost).replaceChildren(costWords(step, run.plain));
  const ruler = $('.ruler', lens);
  ruler.hidden = !step.cache;
  if (ruler.hidden) return;
  $('figure', ruler).replaceChildren(drawRuler(width, step, lastTokensBefore(entry)));
  $('.cap', ruler).textContent = rulerWords(step);
}

/** The last tokens before a step, from the prompt where the answer has too few. */
function lastTokensBefore({ number }) {
  const tokens = [];
  for (let i = number - 2; i >= 0 && tokens.length <= NUM_OLD; i--) tokens.unshift(...run.entries[i].step.emitted);
  const prompt = run.start.prompt_texts.slice(-NUM_OLD - 1).map((text) => ({ text }));
  return [...prompt, ...tokens].slice(-NUM_OLD - 1);
}

// -- keys --

const REPLAY_KEYS = {
  ArrowLeft: () => replayStepBy(-1), ArrowRight: () => replayStepBy(1), Home: () => { haltReplay(); seekReplay(0); }, End: () => { haltReplay(); seekReplay(run.entries.length); },
  'Shift+ArrowLeft': () => replayPhaseBy(-1), 'Shift+ArrowRight': () => replayPhaseBy(1), ' ': toggleReplay, '[': () => replaySpeedBy(-1), ']': () => replaySpeedBy(1),
};

document.addEventListener('keydown', (event) => {
  const { target } = event;
  if (panelInView !== 'inspect' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target !== document.body && !inspectBox.contains(target)) return;
  if (event.key === 'ArrowUp' || event.key === 'ArrowDown') chooseBy(event.key === 'ArrowUp' ? -1 : 1);
  else if (event.key === 'Escape') openTab('watch');
  else {
    if (event.key === ' ' && target.closest('button, a, summary')) return; // it presses what has the focus
    const key = event.shiftKey && event.key.startsWith('Arrow') ? `Shift+${event.key}` : event.key;
    if (!REPLAY_KEYS[key] || !canReplay()) return;
    REPLAY_KEYS[key]();
    if (!replay.playing) speakStep();
  }
  event.preventDefault();
});

addPanel('inspect', drawInspect);
buildTransport();
buildTerms();

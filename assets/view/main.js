// ---- main: takes deltas in, keeps the one run that is shown, and answers mouse, touch and keys -------------------

const SPOKEN_EVERY_MS = 10000;
const run = {};                                   // the run on the page; see beginRun
const feed = { id: null, seq: -1, plain: null };  // the run that deltas arrive from
const queue = [];
let selected = 0;      // number of the selected step, 0 for none
let hovered = 0;
let cursor = -1;       // token under the keyboard's cursor, within the selected step
let following = true;  // the strip's window stays at the end
let awaited = null;    // a step that was chosen on another tab, for when the strip is in view again
let lastSpoken = 0;
let wantedStep = Number(new URLSearchParams(location.search).get('step')) || 0;

// -- intake: numbered deltas, each taken once, drawn once a frame --

function receive(text) {
  let delta;
  try { delta = JSON.parse(text); } catch { return; }
  if (!delta || typeof delta !== 'object') return;
  if (delta.race) return receiveRace(delta);
  if (delta.tour) return takeTour(delta.tour);
  if (!isNews(feed, delta)) return;
  queue.push(delta);
  flushSoon();
}

/** Whether a feed has not had this delta yet; another run's deltas begin anew. */
function isNews(feed, delta) {
  if (delta.run !== feed.id) Object.assign(feed, { id: delta.run, seq: -1, plain: null });
  if (delta.seq <= feed.seq) return false; // the last delta comes twice
  if (delta.seq !== feed.seq + 1) console.warn(`specviz: missed updates between ${feed.seq} and ${delta.seq}`);
  feed.seq = delta.seq;
  return true;
}

const flushSoon = batched(() => {
  for (const delta of queue.splice(0)) take(delta);
  render();
});

function take(delta) {
  awaitLinked(delta);
  if (delta.plain) feed.plain = delta.plain;
  if (delta.start) beginRun(delta);
  else if (delta.run === run.id && run.phase === 'running' && delta.mode === 'live' && delta.status) run.progress = delta.status.text;
  // while steps come in, the headline says the same, larger
  if (delta.status && delta.mode !== 'recorded') showStatus(delta.steps && !delta.finish ? { text: '', fraction: null } : delta.status);
  showProblem(delta);
  if (delta.run !== run.id) return; // queued, loading: the last run stays
  appendOpening(delta.prefill?.emitted ?? []);
  for (const step of delta.steps ?? []) addStep(step);
  for (const told of delta.told ?? []) tellStep(...told);
  for (const key of ['counters', 'plain', 'verdict', 'positions']) if (delta[key]) run[key] = delta[key];
  if (delta.plain?.tokens_per_s && run.mode === 'live') lastPlain.set(plainKey(), delta.plain.tokens_per_s);
  if (delta.finish) finishRun(delta.finish, delta.status?.text);
  if (delta.start && slide) toSlide(slide, { play: false });
  if (delta.mode === 'recorded' && delta.steps && !delta.still) playRecording();
}

function beginRun(delta) {
  resetReplay();
  Object.assign(run, {
    id: delta.run, mode: delta.mode, start: delta.start, phase: 'running', entries: [], progress: 'Reading the prompt',
    names: delta.names, counters: null, verdict: null, positions: null, finish: null, plain: feed.plain,
    source: delta.source,
  });
  rememberSource(delta);
  following = true;
  selected = hovered = 0;
  cursor = -1;
  clearStrip();
  clearLedger();
  clearMap();
  closeTip();
  renderCard(null);
  showPrompt();
  showRecordingNote();
  if (looksLikeCode(delta.start.prompt)) strip.classList.add('mono');
  if (delta.mode === 'live') speak('The run has started.', true);
}

const looksLikeCode = (text) => /```|^\s*(def |class |import |#include|function )/m.test(text ?? '');

const SETTLING_STEPS = 80; // each frame of the fading-in paints the whole text: a long one does without

function addStep(step) {
  if (run.entries.length && step.index <= run.entries.at(-1).step.index) return; // already here
  step.drafted = step.drafted.map((values) => nameTops(named(run.names.drafted, values)));
  step.emitted = step.emitted.map((values) => named(run.names.emitted, values));
  run.counters = named(run.names.counters, step.counters);
  const entry = Object.assign(appendStep(step), { number: run.entries.length + 1, counters: run.counters });
  run.entries.push(entry);
  if (!reducedMotion() && entry.number <= SETTLING_STEPS) entry.span.classList.add('new');
  if (step.emitted.some((token) => token.text.includes('```'))) strip.classList.add('mono');
  if (entry.number === wantedStep) { wantedStep = 0; select(entry.number, { byVisitor: false }); }
}

/** A serving engine says at the end what a step had drafted. Rows of the ledger that stand are drawn again. */
function tellStep(index, drafted, accepted, origin) {
  const entry = run.entries[index - 1];
  if (entry?.step.index !== index) return;
  Object.assign(entry.step, { num_drafted: drafted, num_accepted: accepted });
  if (origin) retellOwn(entry, origin);
  entry.span.setAttribute('aria-label', stepSentence(entry.step));
  clearLedger();
}

/** Counts and tokens travel as values without their names. */
const named = (names, values) => Object.fromEntries(values.map((value, i) => [names[i], value]));

const TOPS = ['draft_top', 'target_top', 'residual_top'];

/** Likeliest tokens travel as triples. */
function nameTops(token) {
  for (const name of TOPS) if (token[name]) token[name] = token[name].map(([token_id, text, prob]) => ({ token_id, text, prob }));
  return token;
}

function finishRun(finish, text) {
  run.finish = finish;
  run.phase = 'done';
  run.progress = text ?? '';
  answer.textContent = finish.text;
  beginReading();
  if (run.mode === 'live') speak(run.verdict ? `${run.progress} ${run.verdict.headline} ${run.verdict.rest}` : run.progress, true);
}

/** A text longer than its window is read from its first word once it stands. Whoever scrolled stays where they are. */
function beginReading() {
  if (!following || selected) return;
  following = false;
  viewport.scrollTop = 0;
}

/** The one live region: start, every ten seconds, end. */
function speak(text, now = false) {
  if (!now && performance.now() - lastSpoken < SPOKEN_EVERY_MS) return;
  lastSpoken = performance.now();
  $('.announce').textContent = text;
}

// -- words and figures above the strip --

function showStatus({ text, fraction }) {
  $('.status').textContent = text;
  const bar = $('.progress');
  bar.hidden = fraction == null;
  if (fraction == null) return;
  bar.setAttribute('aria-valuenow', Math.round(fraction * 100));
  bar.firstElementChild.style.width = `${fraction * 100}%`;
  speak(text);
}

/** An error is content of the page like any other: its first sentence leads, the rest explains. */
function showProblem(delta) {
  const box = $('.problem');
  if (delta.error) {
    const [, first, rest] = delta.error.match(/^(.*?[.!?])\s+([\s\S]+)$/) ?? [null, delta.error, ''];
    $('h2', box).textContent = first;
    $('p', box).textContent = rest;
    $('.status').textContent = '';
    speak(delta.error, true);
    if (run.phase === 'running' && delta.run === run.id) run.phase = 'done';
  }
  if (delta.error || delta.start || (delta.seq === 0 && delta.mode === 'live')) box.hidden = !delta.error;
}

function showPrompt() {
  $('.promptline').hidden = !run.start.prompt;
  $('.promptline span').textContent = run.start.prompt;
}

/** Says that a run is recorded, on which machine and when. */
function showRecordingNote() {
  const { start } = run;
  const box = $('.recording');
  box.hidden = run.mode !== 'recorded';
  $('.madeby').hidden = box.hidden || !start.command;
  $('.madeby code').textContent = start.command ?? '';
  if (box.hidden) return;
  $('.badge').textContent = run.source?.gallery === '' ? 'Opened trace' : 'Recorded run';
  $('.damage').textContent = run.source?.damage ?? '';
  $('.origin').replaceChildren(...originFacts(start, run.source?.title));
}

/** Title, machine, day, pair and method of a recorded run, each unbroken. */
function originFacts({ started_at: startedAt, machine, pair, method }, title = '') {
  const when = new Date(startedAt);
  const day = Number.isNaN(when.getTime()) ? startedAt : when.toLocaleDateString('en-GB', { day: 'numeric', month: 'long', year: 'numeric', timeZone: 'UTC' });
  const threads = machine.threads ? counted(machine.threads, 'thread') : '';
  const facts = [title, machine.processor, threads, day, pair, method].filter(Boolean);
  return facts.flatMap((fact, i) => [...(i ? [' · '] : []), el('span', 'fact', fact)]);
}

function renderVerdict() {
  const { verdict } = run;
  const counters = countersShown();
  const isWhole = replay.number === null;
  const done = isWhole && run.phase === 'done' && verdict;
  const progress = isWhole ? run.progress : progressAt(stepsShown());
  $('.headline').textContent = done ? verdict.headline : progress || 'Ready';
  const speedUp = done ? verdict.speed_up : null;
  if (speedUp != null) $('.headline').dataset.define = 'speed_up'; else delete $('.headline').dataset.define;
  $('.headline').tabIndex = speedUp == null ? -1 : 0;
  const rate = counters?.decode_tokens_per_s;
  const soFar = done ? null : paceAgainstLastPlain(rate);
  $('.rest').textContent = done ? verdict.rest : soFar ? `${fixed(soFar.ratio, 2)}× plain decoding so far` : '';
  $('.detail').textContent = done ? verdict.detail : rate == null ? ' ' : `${fixed(rate, 1)} tokens a second so far.${soFar ? ` Compared with ${fixed(soFar.plain, 1)}, what plain decoding reached last on this page with this pair and number format; the run's own comparison follows.` : ''}`;
  $('.reason').hidden = !(done && verdict.reason);
  $('.reason').textContent = done ? verdict.reason : '';
  if (run.phase === 'running' || replay.playing) speak(progress);
  drawVersus();
  $('.skip').hidden = isWhole;
  $('.replay').hidden = !canReplay();
  $('.replay').textContent = replay.playing ? 'Pause' : isWhole ? 'Play again' : 'Play on';
}

// -- a speed-up before the end: against the plain speed that this page measured last for the same pair and format --

const lastPlain = new Map(); // pair and format -> tokens a second

const plainKey = () => `${run.start.pair} ${run.start.dtype}`;

/** Null for recordings, which ran on another machine or another day, and where nothing was measured yet. */
function paceAgainstLastPlain(rate) {
  const plain = lastPlain.get(plainKey());
  if (run.mode !== 'live' || rate == null || plain == null || run.start.method === 'plain') return null;
  return { plain, ratio: rate / plain };
}

function progressAt(count) {
  return count ? `${counted(run.entries[count - 1].counters.num_tokens, 'token')} in ${counted(count, 'step')}` : 'Nothing written yet';
}

const BAR_PX = 148; // leaves the headline room for one line beside the sidebar, at 1280

/** Plain decoding against this run, in tokens a second; longer is faster. */
function drawVersus() {
  const box = $('.versus');
  const mine = countersShown()?.decode_tokens_per_s;
  const plain = run.plain?.tokens_per_s;
  box.hidden = plain == null || mine == null || run.start.method === 'plain';
  if (box.hidden) return;
  const key = `${mine} ${plain}`;
  if (box._key === key) return;
  box._key = key;
  const node = picture(268, 76, `Tokens a second: plain decoding ${fixed(plain, 1)}, this run ${fixed(mine, 1)}`);
  const longest = Math.max(mine, plain);
  const row = (y, name, value, fill, text) => node.append(
    svg('text', { x: 0, y: y + 12, class: `t13 ${text}` }, name),
    svg('rect', { x: 62, y, width: (BAR_PX * value) / longest, height: 16, rx: 2, class: fill }),
    svg('text', { x: 62 + (BAR_PX * value) / longest + 8, y: y + 13, class: `t13 ${text}` }, fixed(value, 1)),
  );
  row(3, 'plain', plain, 't-plain', '');
  row(33, 'this run', mine, 'inkF', 'ink bold');
  node.append(svg('text', { x: 62, y: 70, class: 't13' }, 'tokens a second'));
  box.replaceChildren(node);
}

// -- legend: counts, and a way to see one fate at a time --

const LEGEND = [['accepted', 'num_accepted'], ['corrected', 'num_corrected'], ['bonus', 'num_bonus'], ['rejected', 'num_rejected'], ['discarded', 'num_discarded'], ['target', 'num_target']];

function buildLegend() {
  for (const [fate, counter] of LEGEND) {
    const { key } = FATES[fate];
    const count = el('b', '', NO_VALUE);
    const button = el('button', `entry ${key}`, mark(key), key === 'r' ? el('s', '', fate) : el('span', `tk ${key}`, fate === 'target' ? 'no draft' : fate), count);
    button.type = 'button';
    button.dataset.define = fate;
    button.setAttribute('aria-pressed', 'false');
    button._counter = counter;
    button.addEventListener('click', () => dimAllBut(root.dataset.only === key ? '' : key));
    $('.legend').append(button);
  }
}

function dimAllBut(key) {
  if (key) root.dataset.only = key; else delete root.dataset.only;
  for (const button of $('.legend').children) button.setAttribute('aria-pressed', String(button.classList.contains(key || 'none')));
}

function renderLegend() {
  for (const button of $('.legend').children) {
    const counters = countersShown();
    const count = counters?.[button._counter];
    const isRefusal = button._counter === 'num_rejected' || button._counter === 'num_discarded';
    button.lastElementChild.textContent = isRefusal && counters?.is_bound && count != null ? `≤ ${count}` : whole(count);
    if (button._counter !== 'num_target') continue;
    button.hidden = !count; // steps without a draft are rare: named when there are some
    button.children[1].textContent = counters?.fates_are_told === false ? 'target' : 'no draft';
  }
}

// -- one drawing a frame --

function render() {
  if (run.start) drawPanel();
}

const mapHome = mapBox.parentNode; // the inspector borrows the map while it is in view

function renderWatch() {
  if (!run.start) return;
  renderVerdict();
  renderFigures();
  renderLegend();
  if (mapBox.parentNode !== mapHome) mapHome.append(mapBox);
  holdBack();
  if (root.dataset.depth === 'steps') extendLedger(run.entries, stepsShown());
  if (unsettled.length) keepNotesInside(unsettled.splice(0));
  if (awaited?.isConnected) keepInWindow(awaited);
  awaited = null;
  if (following) viewport.scrollTop = viewport.scrollHeight;
  $('.follow').hidden = following || !isMoving();
  renderPictures();
}

/** Whether steps come in by themselves, from the server or from the replay. */
const isMoving = () => run.phase === 'running' || replay.playing;

function renderPictures() {
  drawMap(run.entries ?? [], selected, hovered);
  drawClocks();
  if (isMoving()) drawChartsSometimes(); else drawChartsNow();
  const count = run.entries?.length ?? 0;
  mapBox.setAttribute('aria-valuemax', Math.max(1, count));
  if (!selected) {
    mapBox.setAttribute('aria-valuenow', 1);
    mapBox.setAttribute('aria-valuetext', count ? `${counted(count, 'step')}, none selected` : 'No step yet');
  }
}

function drawChartsNow() {
  drawCharts(shownEntries());
  markWindowOnMap();
}

// Lines are drawn anew each time, so a running one is drawn four times a second, not at every update.
const drawChartsSometimes = atMostEvery(250, drawChartsNow);

/** First and last step in the strip's window, by bisection: steps lie in reading order. */
function markWindowOnMap() {
  const entries = shownEntries();
  if (!entries.length || root.dataset.depth === 'steps' || viewport.scrollHeight <= viewport.clientHeight + 4) return drawMapFrame(0);
  const box = viewport.getBoundingClientRect();
  const firstWith = (test) => {
    let low = 0;
    let high = entries.length;
    while (low < high) { const mid = (low + high) >> 1; if (test(entries[mid].span.getBoundingClientRect())) high = mid; else low = mid + 1; }
    return low;
  };
  const first = firstWith((rect) => rect.bottom > box.top + 8);
  const after = firstWith((rect) => rect.top > box.bottom - 8);
  drawMapFrame(first + 1, Math.max(first + 1, after));
}

viewport.addEventListener('scroll', batched(() => {
  const atEnd = viewport.scrollTop + viewport.clientHeight >= viewport.scrollHeight - 24;
  if (isMoving() && following !== atEnd) { following = atEnd; $('.follow').hidden = following; }
  closeTip();
  markWindowOnMap();
}), { passive: true });

$('.follow').addEventListener('click', () => { following = true; render(); });

// -- selection: one step for strip, map and card; kept in the address once the visitor has chosen --

function select(number, { byVisitor = true, scroll = true } = {}) {
  if (byVisitor && number > stepsShown()) seekReplay(number); // the replay has not come this far
  const entries = run.entries ?? [];
  const entry = entries[number - 1];
  const before = entries[selected - 1];
  if (before && before !== entry) { before.span.classList.remove('sel'); before.span.setAttribute('aria-selected', 'false'); }
  if (entry?.number !== selected) moveCursor(-1);
  selected = entry ? number : 0;
  renderCard(entry);
  if (entry) {
    entry.span.classList.add('sel');
    entry.span.setAttribute('aria-selected', 'true');
    strip.setAttribute('aria-activedescendant', entry.span.id);
    mapBox.setAttribute('aria-valuenow', number);
    mapBox.setAttribute('aria-valuetext', entry.span.getAttribute('aria-label'));
    if (scroll && root.dataset.depth !== 'steps') bringIntoWindow(entry.span);
  } else strip.removeAttribute('aria-activedescendant');
  for (const row of ledgerRows?.children ?? []) row.classList.toggle('on', row._entry === entry);
  drawMap(entries, selected, hovered);
  if (panelInView !== 'watch') drawPanel();
  if (byVisitor) keepInAddress('step', selected);
}

/** The visitor wants to look into the selected step, at one of its tokens. */
function inspect(token) {
  if (!selected) return;
  if (replay.playing) haltReplay();
  if (replay.number !== null && replay.number !== selected) seekReplay(selected);
  chooseToken(token);
  openTab('inspect');
}

/** On another tab the strip is not looked at, and to measure it there would lay it out with every step of a drag. */
function bringIntoWindow(node) {
  if (panelInView !== 'watch') awaited = node;
  else if (node.isConnected) keepInWindow(node);
}

function keepInWindow(node) {
  const box = viewport.getBoundingClientRect();
  const rect = node.getBoundingClientRect();
  const line = 44;
  if (rect.top >= box.top && rect.bottom <= box.bottom) return;
  following = false;
  viewport.scrollTop += rect.top < box.top ? rect.top - box.top - line / 2 : rect.bottom - box.bottom + line / 2;
}

function keepInAddress(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
  try { history.replaceState(history.state, '', url); } catch { /* a sandboxed frame */ }
}

/** The keyboard's cursor on a token of the selected step; its tooltip opens at once. */
function moveCursor(place) {
  const chips = run.entries?.[selected - 1]?.chips ?? [];
  chips[cursor]?.classList.remove('cur');
  cursor = place < 0 ? -1 : Math.min(place, chips.length - 1);
  if (cursor < 0) return closeTip();
  const chip = chips[cursor];
  chip.classList.add('cur');
  keepInWindow(chip);
  openTip(tokenTip(chip._token), chip.getClientRects()[0], 'token', chip);
}

function hover(number) {
  if (number === hovered) return;
  hovered = number;
  drawMap(run.entries ?? [], selected, hovered);
}

// -- keys --

const DEPTHS = ['text', 'marks', 'all', 'steps'];

function showDepth(depth) {
  root.dataset.depth = depth;
  remembered.set('depth', depth);
  for (const button of $('.depth').children) button.setAttribute('aria-pressed', String(button.dataset.depth === depth));
  closeTip();
  if (!run.entries) return;
  if (depth === 'marks') unsettled = run.entries.flatMap((entry) => notesOf(entry));
  if (depth === 'steps') viewport.scrollTop = 0;
  render();
}

const notesOf = (entry) => entry.chips.flatMap((chip) => { const lift = $('.lift', chip); return lift ? [{ lift, chip }] : []; });

function stepKeys(event) {
  if (panelInView === 'inspect') return; // the map is there too, and the replay's keys are others
  const count = run.entries?.length ?? 0;
  const moves = { ArrowLeft: Math.max(1, selected - 1), ArrowRight: Math.min(count, selected + 1), Home: 1, End: count };
  if (event.ctrlKey || event.metaKey || event.altKey) {
    if ((event.ctrlKey || event.metaKey) && event.key === 'a' && event.currentTarget === strip) { getSelection().selectAllChildren(strip); event.preventDefault(); }
    return;
  }
  if (event.key in moves && count) select(moves[event.key]);
  else if (event.key === 'ArrowDown' && selected) moveCursor(cursor + 1);
  else if (event.key === 'ArrowUp' && selected) moveCursor(Math.max(0, cursor - 1));
  else if (event.key === 'Enter') inspect(run.entries?.[selected - 1]?.chips[cursor]?._token);
  else if (event.key === 'Escape') { if (tip.hidden) select(0); else moveCursor(-1); }
  else if (DEPTHS[event.key - 1]) showDepth(DEPTHS[event.key - 1]);
  else return;
  event.preventDefault();
}

strip.addEventListener('keydown', stepKeys);
mapBox.addEventListener('keydown', stepKeys);
ledgerBox.addEventListener('keydown', (event) => { if (DEPTHS[event.key - 1]) showDepth(DEPTHS[event.key - 1]); });
strip.addEventListener('blur', () => moveCursor(-1));
document.addEventListener('keydown', (event) => { // the first Escape closes what is open, and no more
  if (event.key !== 'Escape' || tip.hidden) return;
  closeTip();
  event.stopImmediatePropagation();
});
$('.depth').addEventListener('click', (event) => { if (event.target.dataset.depth) showDepth(event.target.dataset.depth); });

// -- pointer: tooltips after a moment, a click selects, a tap takes the nearest word --

const tokenUnder = (node) => node.closest?.('.lift, .tk');

viewport.addEventListener('pointerover', (event) => {
  hover(event.target.closest?.('.st')?._entry.number ?? event.target.closest?.('tr')?._entry?.number ?? 0);
  if (event.pointerType === 'touch' || root.clientWidth < NARROW_PX) return;
  const chip = tokenUnder(event.target);
  clearTimeout(tip._timer);
  if (!chip?._token) return closeTip();
  if (tip._owner !== chip) tip._timer = setTimeout(() => openTip(tokenTip(chip._token), rectAt(chip, event.clientY), 'token', chip), TIP_DELAY_MS);
});
viewport.addEventListener('pointerleave', () => { hover(0); if (cursor < 0) closeTip(); });

viewport.addEventListener('click', (event) => {
  if (!getSelection().isCollapsed) return; // the visitor was marking text
  const target = event.target.closest('.st, tr') ?? nearestStep(event);
  const entry = target?._entry;
  if (!entry) return;
  if (entry.number === selected) inspect(tokenUnder(event.target)?._token);
  else select(entry.number, { scroll: false });
});

/** The step within 12 px of a tap that met no word. */
function nearestStep({ clientX, clientY }) {
  for (const [dx, dy] of [[0, -12], [0, 12], [-12, 0], [12, 0], [-9, -9], [9, -9], [-9, 9], [9, 9]]) {
    const near = document.elementFromPoint(clientX + dx, clientY + dy)?.closest('.st');
    if (near && strip.contains(near)) return near;
  }
  return null;
}

let scrubbing = false;
mapBox.addEventListener('pointerdown', (event) => { if (run.entries?.length) { scrubbing = true; mapBox.setPointerCapture(event.pointerId); scrub(event); } });
mapBox.addEventListener('pointermove', (event) => { if (scrubbing) scrub(event); else if (run.entries?.length) hover(stepAtX(event.clientX, run.entries.length)); });
for (const name of ['pointerup', 'pointercancel']) mapBox.addEventListener(name, () => { scrubbing = false; });
mapBox.addEventListener('pointerleave', () => hover(0));

function scrub(event) {
  const number = stepAtX(event.clientX, run.entries.length);
  if (panelInView === 'inspect' && canReplay()) {
    haltReplay();
    if (number !== replayPosition() || replay.phase !== COMMIT) seekReplay(number);
  } else if (number !== selected) select(number);
}

addPanel('watch', renderWatch);

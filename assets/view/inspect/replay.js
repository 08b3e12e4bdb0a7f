// ---- replay: a run that is done, again, on the browser's clock; the server is idle ---------------------------------
// Two clocks: the run's own, in real seconds of decoding, and the pace it is shown at. Both are always named.

const REPLAY_SPEEDS = ['slow', 0.1, 0.5, 1, 4, 10]; // times the run's own speed; slow motion gives each phase the same time
const PHASE_MS = 480;
const COMMIT = 2; // draft, verify, commit

// number: the step that the replay stands at, 0 before the first, null while the whole run is shown.
// phase: how far that step is; its words are in the text from COMMIT on. clock: seconds of the run.
const replay = { number: null, phase: COMMIT, clock: 0, playing: false, speed: 1, then: 0, timer: 0 };

const canReplay = () => run.phase === 'done' && run.entries?.length > 0;
const stepsShown = () => (replay.number === null ? run.entries?.length ?? 0 : replay.number - (replay.phase < COMMIT ? 1 : 0));
const shownEntries = () => (replay.number === null ? run.entries ?? [] : run.entries.slice(0, stepsShown()));

/** Where the replay stands. The inspector looks at one step of a whole run as if the replay stood there. */
const replayPosition = () => replay.number ?? (panelInView === 'inspect' ? selected : run.entries?.length ?? 0);

/** Counts of the moment. */
const countersShown = () => (replay.number === null ? run.counters : run.entries[stepsShown() - 1]?.counters ?? null);

function runClockAt(number, phase) {
  if (number < 1) return 0;
  return run.entries[number - 1].step.clock[phase + 1];
}

function resetReplay() {
  haltReplay();
  Object.assign(replay, { number: null, phase: COMMIT, clock: 0 });
  heldBack.replaceChildren();
  numInStrip = null;
}

// -- moving --

/** Goes to a step, 0 for before the first; the end shows the whole run again. */
function seekReplay(number, phase = COMMIT) {
  if (!canReplay()) return;
  const last = run.entries.length;
  const to = Math.max(0, Math.min(last, number));
  const atEnd = to === last && phase === COMMIT;
  Object.assign(replay, { number: atEnd ? null : to, phase: to ? phase : COMMIT, clock: runClockAt(to, phase) });
  if (atEnd) { haltReplay(); beginReading(); }
  showMoment(to);
}

/** The inspector follows the replay; elsewhere a chosen step stays chosen. */
function showMoment(number) {
  if (panelInView !== 'inspect') return render();
  if (number === selected) drawPanel();
  else select(number, { byVisitor: false });
  keepStepInAddress();
}

const keepStepInAddress = atMostEvery(400, () => keepInAddress('step', selected)); // browsers allow few changes a second

function replayStepBy(steps) {
  haltReplay();
  const isInside = replay.phase < COMMIT; // then the next step on is the end of this one
  seekReplay(replayPosition() + steps - (isInside && steps > 0 ? 1 : 0));
}

function replayPhaseBy(phases) {
  haltReplay();
  const at = replayPosition() * 3 + (replay.number === null ? COMMIT : replay.phase) + phases;
  if (at < 3 || at > run.entries.length * 3 + COMMIT) seekReplay(at < 3 ? 0 : run.entries.length);
  else seekReplay(Math.floor(at / 3), at % 3);
}

function showWhole() {
  haltReplay();
  replay.number = null;
  replay.phase = COMMIT;
  beginReading();
  render();
}

// -- playing --

function startReplay() {
  if (!canReplay()) return;
  if (replayPosition() >= run.entries.length && replay.phase === COMMIT) rewindReplay();
  if (replay.number === null) Object.assign(replay, { number: replayPosition(), clock: runClockAt(replayPosition(), COMMIT) });
  if (replay.speed === 'slow' && reducedMotion()) return replayPhaseBy(1); // every press moves on, nothing moves by itself
  haltReplay();
  Object.assign(replay, { playing: true, then: performance.now() });
  if (replay.speed === 'slow') return replayPhases();
  replaySoon();
  showMoment(replay.number);
}

function rewindReplay() {
  haltReplay();
  Object.assign(replay, { number: 0, phase: COMMIT, clock: 0 });
  following = true;
}

function haltReplay() {
  replay.playing = false;
  clearTimeout(replay.timer);
}

function pauseReplay() {
  haltReplay();
  showMoment(replayPosition());
}

const toggleReplay = () => (replay.playing ? pauseReplay() : startReplay());

const replaySoon = batched(() => {
  if (!replay.playing || replay.speed === 'slow') return;
  const now = performance.now();
  replay.clock += ((now - replay.then) / 1000) * replay.speed;
  replay.then = now;
  let number = stepsShown();
  while (number < run.entries.length && runClockAt(number + 1, COMMIT) <= replay.clock) number += 1;
  if (number === run.entries.length) return seekReplay(number);
  const changed = number !== replay.number || replay.phase !== COMMIT;
  Object.assign(replay, { number, phase: COMMIT });
  if (changed) showMoment(number); else drawClocks();
  replaySoon();
});

function replayPhases() {
  const isNext = replay.phase === COMMIT;
  if (isNext && replay.number >= run.entries.length) return seekReplay(replay.number);
  seekReplay(replay.number + (isNext ? 1 : 0), isNext ? 0 : replay.phase + 1);
  if (replay.playing) replay.timer = setTimeout(replayPhases, PHASE_MS);
}

function setReplaySpeed(speed) {
  const wasPlaying = replay.playing;
  haltReplay();
  replay.speed = speed;
  if (wasPlaying) startReplay(); else drawPanel();
}

const replaySpeedBy = (change) => setReplaySpeed(REPLAY_SPEEDS[Math.max(0, Math.min(REPLAY_SPEEDS.length - 1, REPLAY_SPEEDS.indexOf(replay.speed) + change))]);

/** A recorded run plays by itself once, on Watch, unless the visitor asked for less motion or for another tab. */
function playRecording() {
  const tab = new URLSearchParams(location.search).get('tab');
  if (reducedMotion() || panelInView !== 'watch' || (tab && tab !== 'watch')) return;
  rewindReplay();
  startReplay();
}

// -- which clock is shown --

function paceInWords() {
  const { speed } = replay;
  if (speed === 'slow') return reducedMotion() ? 'shown phase by phase, one a key press' : 'shown in slow motion, half a second a phase';
  if (speed === 1) return 'shown at its real speed';
  return speed < 1 ? `shown ${Math.round(1 / speed)} times slower` : `shown ${speed} times faster`;
}

/** Playhead, run clock and pace, wherever they are in view. */
function drawClocks() {
  const whole = replay.number === null && panelInView !== 'inspect';
  if (!run.entries?.length) return drawPlayhead(null);
  const clock = replay.playing ? replay.clock : runClockAt(replayPosition(), replay.number === null ? COMMIT : replay.phase);
  const total = run.entries.at(-1).counters.decode_s;
  drawPlayhead(whole || !canReplay() ? null : placeOnMap(clock), replay.number === null ? null : stepsShown());
  const [now, end] = [`${fixed(clock, 2)}\u00a0s`, `${seconds(total)}`];
  if (panelInView === 'inspect') {
    $('.runclock').replaceChildren('run clock ', el('b', '', now), ` of ${end}`);
    $('.pace').textContent = paceInWords();
  } else $('.clock').textContent = whole ? '' : `run clock ${now} of ${end}, ${paceInWords()}`;
}

/** In columns of the map: 14.5 is in the middle of step 15. */
function placeOnMap(clock) {
  const done = Math.min(replay.number === null ? replayPosition() : stepsShown(), run.entries.length);
  const entry = run.entries[done];
  if (replay.number === null || !entry) return done;
  const [began, , , end] = entry.step.clock;
  return done + (end > began ? Math.max(0, Math.min(1, (clock - began) / (end - began))) : 0);
}

// -- the strip holds the text up to the moment; what comes later waits outside it --

const heldBack = document.createDocumentFragment();
const pendingDraft = el('span', 'pending');
pendingDraft.setAttribute('aria-hidden', 'true');
let numInStrip = null; // null: all of them

function holdBack() {
  const entries = run.entries ?? [];
  const count = stepsShown();
  const before = numInStrip ?? entries.length;
  pendingDraft.remove();
  if (count < before) {
    const range = document.createRange();
    if (count) range.setStartAfter(entries[count - 1].span); else range.setStart(strip, 0);
    range.setEnd(strip, strip.childNodes.length);
    heldBack.prepend(range.extractContents());
  } else if (count > before) {
    const until = entries[count - 1].span;
    for (let node = heldBack.firstChild; node; node = node === until ? null : heldBack.firstChild) strip.append(node);
    unsettled.push(...entries.slice(before, count).flatMap(notesOf));
  }
  numInStrip = replay.number === null ? null : count;
  const row = replay.number !== null && replay.phase < COMMIT && entries[replay.number - 1];
  if (!row) return;
  pendingDraft.replaceChildren(...row.step.drafted.map((token) => word(token, 'tk pend')).flatMap((chip) => [' ', chip]));
  strip.append(pendingDraft);
}

$('.replay').addEventListener('click', toggleReplay);
$('.skip').addEventListener('click', showWhole);

// ---- race: lanes that were measured one after another, replayed on one clock ---------------------------------------
// The server sends each lane whole: when each of its steps was done, and the counts and rates of that moment.

const raceBox = $('.race');
const seek = $('.seek', raceBox);
const raceFeed = { id: null, seq: -1 };
const race = { lanes: [], result: null, clock: 0, end: 0, speed: 1, playing: false, due: false };
const SPEEDS = [0.1, 0.5, 1, 2, 4];
const PACES = { 0.1: 'shown 10 times slower', 0.5: 'shown at half speed', 1: 'shown at its real speed', 2: 'shown 2 times faster', 4: 'shown 4 times faster' };
const FRAME_MS = { least: 30, longest: 250 }; // a page that could not draw goes on where it was
const TRACK_PX = { height: 28, cell: 11, top: 7, end: 8 };

// -- intake --

function receiveRace(delta) {
  const part = delta.race;
  if (part.mode === 'recorded' && raceFeed.id !== null) return; // the visitor has one already
  if (!isNews(raceFeed, delta)) return;
  if (part.status) showRaceStatus(part.status);
  if (part.problem || part.start || delta.seq === 0) showRaceProblem(part.problem);
  if (part.start) beginRace(part);
  for (const lane of part.lanes ?? []) addLane(lane);
  if (part.result) finishRace(part); else if (part.lanes) markTurn();
}

function showRaceStatus({ text, fraction }) {
  $('.racesays').textContent = text;
  const bar = $('.racestatus .progress');
  bar.hidden = fraction == null;
  if (bar.hidden) return;
  bar.setAttribute('aria-valuenow', Math.round(fraction * 100));
  bar.firstElementChild.style.width = `${fraction * 100}%`;
  speak(text);
}

function showRaceProblem(sentence) {
  const box = $('.raceproblem');
  box.hidden = !sentence;
  if (!sentence) return;
  const [, first, rest] = sentence.match(/^(.*?[.!?])\s+([\s\S]+)$/) ?? [null, sentence, ''];
  $('h2', box).textContent = first;
  $('p', box).textContent = rest;
  speak(sentence, true);
}

function beginRace({ mode, start, origin }) {
  pauseRace();
  Object.assign(race, { mode, lanes: [], result: null, clock: 0, end: 0, due: false });
  raceBox.hidden = false;
  raceBox.classList.add('measuring');
  $('.lead', raceBox).textContent = 'Measuring, one after another';
  $('.texts', raceBox).textContent = 'The race begins when all have been measured.';
  $('.promptline span', raceBox).textContent = start.prompt;
  $('.racenote', raceBox).hidden = mode !== 'recorded';
  if (origin) $('.race-origin', raceBox).replaceChildren(...originFacts(origin));
  $('.lanes', raceBox).replaceChildren(...start.titles.map((title) => el('li', 'lane', el('h3', '', title), el('div', 'track'), el('div', 'res', el('small', '', 'waits')))));
}

/** Says of the lane after the measured ones that it is its turn. */
function markTurn() {
  const row = $('.lanes', raceBox).children[race.lanes.length];
  if (row) $('.res small', row).textContent = 'being measured';
}

function addLane(lane) {
  const row = $('.lanes', raceBox).children[race.lanes.length];
  lane.says = el('p', 'vh');
  lane.trackBox = el('div', 'track');
  lane.res = el('div', 'res');
  lane.trackBox.ariaHidden = lane.res.ariaHidden = 'true'; // the sentence says the same
  const why = lane.problem || lane.verdict?.reason;
  row.replaceChildren(el('h3', '', lane.title, el('small', '', lane.caption)));
  if (lane.steps.length) row.append(lane.trackBox, lane.res, lane.says);
  if (why) row.append(el('p', 'why', why));
  row.classList.toggle('absent', !lane.steps.length);
  race.lanes.push(lane);
  race.end = race.clock = Math.max(race.end, lane.steps.length ? lane.decode_s : 0); // measured lanes stand at their end
  layOutRace();
}

function finishRace({ mode, result }) {
  race.result = result;
  raceBox.classList.remove('measuring');
  for (const row of [...$('.lanes', raceBox).children].slice(race.lanes.length)) row.remove(); // stopped before them
  giveLines(result.order);
  $('.lead', raceBox).textContent = result.headline;
  $('.texts', raceBox).textContent = result.texts;
  race.arrivals = [...new Set(race.lanes.flatMap((lane) => lane.steps.map(([end]) => end)))].sort((a, b) => a - b);
  buildPlaces();
  layOutRace();
  if (mode === 'live') speak(`${result.headline} ${result.texts}`, true);
  if (reducedMotion()) return goTo(race.end);
  goTo(0);
  race.due = true;
  drawRacePanel();
}

/** Ink for the fastest of the drafting methods, grey dashes for plain decoding. */
function giveLines(order) {
  const rest = ['run', 's2', 's3'];
  const place = (lane) => (order.includes(lane.method) ? order.indexOf(lane.method) : order.length);
  for (const lane of [...race.lanes].sort((a, b) => place(a) - place(b))) lane.line = lane.method === 'plain' ? 'plain' : rest.shift();
}

// -- the clock --

/** How many steps of a lane are done at the clock, by bisection. */
function stepsDone({ steps }) {
  let low = 0;
  let high = steps.length;
  while (low < high) { const mid = (low + high) >> 1; if (steps[mid][0] <= race.clock + 1e-6) low = mid + 1; else high = mid; } // times are rounded
  return low;
}

function goTo(clock) {
  race.clock = Math.min(race.end, Math.max(0, clock));
  drawRace();
  sayLanes();
}

function playRace() {
  if (race.clock >= race.end) goTo(0);
  Object.assign(race, { playing: true, due: false, drawn: performance.now() });
  showPlaying();
  tickSoon();
}

function pauseRace() {
  if (!race.playing) return;
  race.playing = false;
  showPlaying();
  sayLanes();
}

function showPlaying() {
  raceBox.classList.toggle('playing', race.playing);
  $('[data-go=play]', raceBox).setAttribute('aria-label', race.playing ? 'Pause' : 'Play');
}

const tickSoon = batched(() => {
  if (!race.playing) return;
  if (panelInView !== 'race' || document.hidden) return pauseRace();
  const now = performance.now();
  if (now - race.drawn < FRAME_MS.least) return tickSoon();
  race.clock = Math.min(race.end, race.clock + (Math.min(now - race.drawn, FRAME_MS.longest) / 1000) * race.speed);
  race.drawn = now;
  drawRace();
  if (race.clock >= race.end) return pauseRace();
  tickSoon();
});

function setSpeed(speed) {
  race.speed = speed;
  for (const button of $('.speeds', raceBox).children) button.setAttribute('aria-pressed', String(Number(button.dataset.speed) === speed));
  $('.pace', raceBox).textContent = PACES[speed];
}

// -- drawing --

function layOutRace() {
  race.width = raceBox.clientWidth;
  if (!race.width) return; // another tab is in view
  for (const lane of race.lanes) if (lane.steps.length) drawTrack(lane);
  if (race.result) { drawRaceChart(); measurePlaces(); }
  drawRace();
}

/** The whole lane, in a window that opens as far as the clock has come. */
function drawTrack(lane) {
  const width = Math.floor(lane.trackBox.clientWidth);
  const { height, cell, top, end } = TRACK_PX;
  const most = Math.max(...race.lanes.map((other) => other.num_tokens));
  lane.x = (tokens) => (tokens / most) * (width - end);
  const shapes = { accepted: '', corrected: '', bonus: '', target: '', refused: '' };
  const gap = lane.x(1) > 3 ? 1.6 : 0.4;
  for (const [, count, , refused, tokens] of lane.steps) {
    let from = count - tokens.length;
    for (const group of runsOf(tokens.map(([, origin]) => origin))) {
      const wide = Math.max(0.8, lane.x(group.length) - gap);
      shapes[group.origin] += `M${lane.x(from).toFixed(1)} ${top}h${wide.toFixed(1)}v${cell}h${-wide.toFixed(1)}z`;
      from += group.length;
    }
    if (refused) shapes.refused += `M${lane.x(count - 0.5).toFixed(1)} ${top + cell + 3}v4`;
  }
  const node = picture(width, height, '');
  lane.window = svg('svg', { x: 0, y: 0, height, width: 0 });
  for (const [origin, d] of Object.entries(shapes)) {
    if (d) lane.window.append(svg('path', { d, class: origin === 'refused' ? 'refused' : `L-${FATES[origin].key}${origin === 'accepted' ? ' soft' : ''}` }));
  }
  lane.head = svg('circle', { class: 'inkF', cy: top + cell / 2, r: 5.5 });
  node.append(svg('rect', { class: 'T-2', y: top + cell / 2 - 0.5, width: lane.x(lane.num_tokens), height: 1 }), lane.window);
  if (lane.whole) node.append(svg('line', { class: 'goal', x1: lane.x(lane.num_tokens), x2: lane.x(lane.num_tokens), y1: 1, y2: height - 1 }));
  node.append(lane.head);
  lane.trackBox.replaceChildren(node);
  lane.shown = -1;
}

/** Neighbours of one origin as { origin, length }. */
function runsOf(origins) {
  const out = [];
  for (const origin of origins) { if (out.at(-1)?.origin === origin) out.at(-1).length += 1; else out.push({ origin, length: 1 }); }
  return out;
}

function drawRace() {
  if (!race.lanes.length || !raceBox.clientWidth) return;
  let moved = false;
  for (const lane of race.lanes) {
    const done = stepsDone(lane);
    if (!lane.steps.length || done === lane.shown) continue;
    lane.shown = done;
    moved = true;
    drawLane(lane);
  }
  if (!race.result) return;
  const [big, small] = $('.raceclock', raceBox).children;
  big.textContent = `${race.clock.toFixed(2)}\u00a0s`;
  small.textContent = `of ${seconds(race.end)}`;
  seek.max = race.end;
  seek.value = race.clock;
  seek.setAttribute('aria-valuetext', `${race.clock.toFixed(2)} of ${race.end.toFixed(2)} seconds`);
  moveChartHead();
  if (moved) drawPlaces();
}

const tokensShown = (lane) => (lane.shown > 0 ? lane.steps[lane.shown - 1][1] : 0);
const rateShown = (lane) => (lane.shown > 0 ? lane.steps[lane.shown - 1][2] : null);
const isThere = (lane) => lane.shown === lane.steps.length;

function drawLane(lane) {
  const tokens = tokensShown(lane);
  const there = isThere(lane);
  lane.window.setAttribute('width', Math.max(0, lane.x(tokens)));
  lane.head.setAttribute('cx', lane.x(tokens));
  lane.head.style.display = there && lane.whole ? 'none' : '';
  const rate = `${fixed(rateShown(lane), 1)} tokens/s`;
  const count = `${tokens} of ${lane.num_tokens}`;
  if (!there || !lane.whole) return lane.res.replaceChildren(count, el('small', '', rate));
  const first = race.result && !race.result.same_length ? 'end' : 'line'; // of unequal texts the first at its end is not the fastest
  const at = el('small', '', `${first} at ${seconds(lane.decode_s)}`);
  const ratio = lane.speed_up == null ? count : el('b', '', `${fixed(lane.speed_up, 2)}×${lane.verdict?.kind === 'slower' ? ' slower' : ''}`);
  return lane.res.replaceChildren(ratio, el('small', '', rate), at);
}

/** What the lanes show, in words; not while they move. */
function sayLanes() {
  for (const lane of race.lanes) {
    if (!lane.steps.length || lane.shown === undefined) continue;
    const so = `${tokensShown(lane)} of ${lane.num_tokens} tokens at ${race.clock.toFixed(2)} seconds, ${fixed(rateShown(lane), 1)} tokens a second.`;
    lane.says.textContent = isThere(lane) && lane.speed_up != null ? `${so} ${lane.verdict.headline} ${lane.verdict.rest}.` : so;
  }
}

function drawRacePanel() {
  if (panelInView !== 'race') return;
  if (race.due) playRace();
}

// -- mouse and keys --

const raceMoves = {
  start: () => { pauseRace(); goTo(0); },
  end: () => { pauseRace(); goTo(race.end); },
  play: () => (race.playing ? pauseRace() : playRace()),
};

/** To the next or the last moment at which a lane got something. */
function stepRace(forward) {
  pauseRace();
  const next = forward ? race.arrivals.find((end) => end > race.clock + 1e-6) : race.arrivals.findLast((end) => end < race.clock - 1e-6);
  goTo(next ?? (forward ? race.end : 0));
}

function raceKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !race.result) return;
  const change = { '[': -1, ']': 1 }[event.key];
  if (event.key === ' ' && event.target === seek) raceMoves.play(); // buttons have their own Space
  else if (event.key === 'ArrowRight' || event.key === 'ArrowLeft') stepRace(event.key === 'ArrowRight');
  else if (event.key === 'Home') raceMoves.start();
  else if (event.key === 'End') raceMoves.end();
  else if (change) setSpeed(SPEEDS[SPEEDS.indexOf(race.speed) + change] ?? race.speed);
  else return;
  event.preventDefault();
}

$('.racebar', raceBox).addEventListener('keydown', raceKeys);
$('.racebar', raceBox).addEventListener('click', ({ target }) => {
  const button = target.closest('button');
  if (button?.dataset.go) raceMoves[button.dataset.go]();
  if (button?.dataset.speed) setSpeed(Number(button.dataset.speed));
});
seek.addEventListener('input', () => { pauseRace(); goTo(seek.valueAsNumber); });
new ResizeObserver(batched(() => { if (raceBox.clientWidth !== race.width) layOutRace(); })).observe(raceBox);
document.fonts.ready.then(layOutRace); // the widths of words change with them

for (const [key, text] of [['a', 'accepted'], ['c', 'corrected, tick: a draft was refused'], ['b', 'bonus'], ['t', 'target alone']]) $('.lanekey', raceBox).append(el('span', '', mark(key), text));
setSpeed(1);
addPanel('race', drawRacePanel);

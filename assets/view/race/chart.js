// ---- race: tokens against time, a step line a lane ------------------------------------------------------------------

const raceChart = { box: $('.race-chart .plot'), left: 34, right: 18, down: 190, foot: 24 };
const LABEL_ROW_PX = 15;
const LETTER_PX = 6.9;

function drawRaceChart() {
  const { box, left, right, down, foot } = raceChart;
  const lanes = race.lanes.filter((lane) => lane.steps.length);
  box.replaceChildren();
  if (!lanes.length) return;
  const width = Math.floor(box.clientWidth);
  const most = Math.max(...lanes.map((lane) => lane.num_tokens));
  const x = (t) => left + (t / race.end) * (width - left - right);
  const labels = placeLabels(lanes, x, (n) => down * (1 - n / most), width);
  const top = 14 - Math.min(...labels.map((label) => label.y));
  const height = top + down + foot;
  const y = (n) => top + down * (1 - n / most);
  const node = picture(width, height, raceFinding(lanes));
  const past = svg('rect', { class: 'past', x: left, y: top, height: down, width: 0 });
  node.append(past);
  drawRaceGrid(node, { x, y, left, right, width, height, most });
  const window_ = svg('svg', { x: 0, y: 0, height, width: 0 });
  const paths = lanes.map((lane) => svg('path', { class: `ln ${lane.line}`, d: stepLine(lane, x, y) }));
  const faint = svg('g', { class: 'tocome' });
  faint.append(...paths.map((path) => path.cloneNode()));
  window_.append(...paths);
  const head = svg('line', { class: 'head', y1: top - 4, y2: top + down + 3 });
  const knob = svg('circle', { class: 'headF', cy: top + down + 3, r: 4.5 });
  node.append(faint, window_, head, knob);
  for (const { text, lane, at, y: over } of labels) node.append(svg('text', { class: `t13 mid${lane.line === 'run' ? ' ink bold' : ''}`, x: at, y: over + top }, text));
  box.append(node);
  Object.assign(raceChart, { x, width, past, window: window_, head, knob });
  fillRaceTable();
}

function moveChartHead() {
  if (!raceChart.x) return;
  const at = raceChart.x(race.clock);
  raceChart.past.setAttribute('width', Math.max(0, at - raceChart.left));
  raceChart.window.setAttribute('width', at + 1);
  raceChart.head.setAttribute('x1', at);
  raceChart.head.setAttribute('x2', at);
  raceChart.knob.setAttribute('cx', at);
}

const stepLine = ({ steps }, x, y) => `M${x(0).toFixed(1)} ${y(0).toFixed(1)}${steps.map(([end, count]) => `H${x(end).toFixed(1)}V${y(count).toFixed(1)}`).join('')}`;
const raceFinding = (lanes) => `Tokens against time. ${lanes.map((lane) => `${lane.title}: ${lane.num_tokens} tokens in ${seconds(lane.decode_s)}`).join('; ')}.`;

/** Each line's name and time over its end, moved up where two would meet. */
function placeLabels(lanes, x, y, width) {
  const placed = [];
  for (const lane of [...lanes].sort((a, b) => b.decode_s - a.decode_s)) {
    const text = `${lane.title} ${seconds(lane.decode_s)}`;
    const half = (text.length * LETTER_PX) / 2;
    const label = { lane, text, half, at: Math.min(width - half, Math.max(half, x(lane.decode_s))), y: y(lane.num_tokens) - 8 };
    const meets = (other) => Math.abs(other.at - label.at) < other.half + half + 6 && Math.abs(other.y - label.y) < LABEL_ROW_PX;
    while (placed.some(meets)) label.y -= LABEL_ROW_PX;
    placed.push(label);
  }
  return placed;
}

function drawRaceGrid(node, { x, y, left, right, width, height, most }) {
  const rows = [1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 256, 500].find((gap) => most / gap <= 4.2) ?? 1000;
  for (let n = 0; n <= most; n += rows) {
    node.append(svg('line', { class: n ? 'gridline' : 'axis', x1: left, x2: width - right, y1: y(n), y2: y(n) }), svg('text', { class: 'end', x: left - 7, y: y(n) + 4 }, n));
  }
  const columns = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120].find((gap) => race.end / gap <= 6) ?? 300;
  for (let i = 0; i * columns <= race.end; i++) node.append(svg('text', { class: 'mid', x: x(i * columns), y: height - 4 }, String(Number((i * columns).toFixed(2)))));
  node.append(svg('text', { class: 'end', x: width, y: height - 4 }, 's'));
}

// The pointer draws the clock along.
let draggingClock = false;

function dragClock({ clientX }) {
  const { box, left, right, width } = raceChart;
  goTo(((clientX - box.getBoundingClientRect().left - left) / (width - left - right)) * race.end);
}

raceChart.box.addEventListener('pointerdown', (event) => {
  if (!race.result) return;
  draggingClock = true;
  raceChart.box.setPointerCapture(event.pointerId);
  pauseRace();
  dragClock(event);
});
raceChart.box.addEventListener('pointermove', (event) => { if (draggingClock) dragClock(event); });
for (const name of ['pointerup', 'pointercancel']) raceChart.box.addEventListener(name, () => { draggingClock = false; });

// -- the same as a table --

const raceTable = $('.race-chart .tablebox');
const raceTableButton = $('.race-chart .quiet');

raceTableButton.addEventListener('click', () => {
  const open = raceTableButton.getAttribute('aria-expanded') !== 'true';
  raceTableButton.setAttribute('aria-expanded', String(open));
  fillRaceTable();
});

function fillRaceTable() {
  raceTable.replaceChildren();
  if (raceTableButton.getAttribute('aria-expanded') !== 'true') return;
  const columns = [['tokens', (lane) => whole(lane.num_tokens)], ['seconds', (lane) => fixed(lane.decode_s, 2)], ['tokens a second', (lane) => fixed(lane.tokens_per_s, 1)], ['speed-up', (lane) => (lane.speed_up == null ? NO_VALUE : `${fixed(lane.speed_up, 2)}×`)]];
  const heading = (scope, text) => { const cell = el('th', '', text); cell.scope = scope; return cell; };
  const head = el('tr', '', heading('col', 'method'), ...columns.map(([name]) => heading('col', name)));
  const rows = race.lanes.map((lane) => el('tr', '', heading('row', lane.title), ...columns.map(([, value]) => el('td', '', value(lane)))));
  raceTable.tabIndex = 0;
  raceTable.setAttribute('role', 'region');
  raceTable.setAttribute('aria-label', 'Tokens against time, table');
  raceTable.append(el('table', 'data', el('caption', 'vh', 'Tokens against time'), el('thead', '', head), el('tbody', '', ...rows)));
}

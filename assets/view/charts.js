// ---- charts: run map and three lines over the steps, drawn at the measured width of their boxes ------------------

const mapBox = $('.mapbox');
const chartsBox = $('.charts');
const CELL = { full: 8, least: 2, gap: 1.5 };
const MAP_PX = { top: 10, foot: 20, most: 140 };
const COLUMN_PX = [26, 18, 13, 9, 6, 4, 3]; // widths tried while a run grows; the finished run fills the box
const GLYPHS_FROM_PX = 8;
const MERGE_UNDER_PX = 3;

// -- run map: a column a step; kept tokens stack up, refused and untested hang down --

const map = { width: 0, column: 26, merge: 1, up: 1, down: 1, cell: CELL.full, drawn: 0 };

function clearMap() {
  Object.assign(map, { up: 1, down: 1, drawn: 0, svg: null });
  mapBox.replaceChildren();
}

/** Room that the steps so far need; asks for a new drawing when it has grown. */
function measureMap(entries) {
  let { up, down } = map;
  for (let i = map.drawn; i < entries.length; i++) {
    const { step } = entries[i];
    up = Math.max(up, step.emitted.length);
    down = Math.max(down, step.drafted.filter((token) => token.fate !== 'accepted').length);
  }
  const free = map.width - 4;
  const fit = free / Math.max(1, entries.length);
  const running = run.phase === 'running';
  const column = running ? COLUMN_PX.find((px) => px <= fit) ?? fit : Math.min(27, fit);
  const merge = column < MERGE_UNDER_PX ? Math.ceil(MERGE_UNDER_PX / column) : 1;
  const changed = up !== map.up || down !== map.down || column !== map.column || merge !== map.merge || !map.svg;
  Object.assign(map, { up, down, column, merge });
  map.cell = Math.max(CELL.least, Math.min(CELL.full, MAP_PX.most / (up + down)));
  map.axis = MAP_PX.top + up * map.cell;
  map.height = Math.round(map.axis + 3 + Math.min(down * map.cell, MAP_PX.most / 2) + MAP_PX.foot);
  return changed;
}

function drawMap(entries, selected, hovered) {
  if (!map.width) return;
  if (measureMap(entries)) {
    map.drawn = 0;
    map.svg = picture(map.width, map.height, '');
    map.here = svg('rect', { class: 'youT', rx: 3, y: 4, height: map.height - MAP_PX.foot });
    map.over = svg('rect', { class: 'T-2', rx: 3, y: 4, height: map.height - MAP_PX.foot });
    map.cells = svg('g');
    map.labels = svg('g');
    map.frame = svg('rect', { class: 'frame', rx: 4, y: 1.5, height: map.height - MAP_PX.foot + 2 });
    map.veil = svg('rect', { class: 'veil', y: 0, height: map.height - MAP_PX.foot + 2 });
    map.head = svg('g', { class: 'playhead' });
    map.head.append(svg('line', { y1: 4, y2: map.height - MAP_PX.foot + 1 }), svg('circle', { cy: 6, r: 5.5 }));
    map.svg.append(map.over, map.here, svg('line', { class: 'axis', x1: 0, x2: map.width, y1: map.axis + 1, y2: map.axis + 1 }), map.cells, map.veil, map.labels, map.frame, map.head);
    drawPlayhead(null);
    mapBox.replaceChildren(map.svg);
  }
  // columns of merged steps may still be filling: draw the last one again
  if (map.merge > 1 && map.drawn % map.merge) { map.cells.lastChild?.remove(); map.drawn -= map.drawn % map.merge; }
  while (map.drawn < entries.length) {
    const group = entries.slice(map.drawn, map.drawn + map.merge);
    map.cells.append(map.merge > 1 ? mergedColumn(group) : stepColumn(group[0]));
    map.drawn += group.length;
  }
  drawMapLabels(entries.length, selected);
  placeColumn(map.here, selected);
  placeColumn(map.over, hovered);
}

const columnLeft = (number) => 2 + Math.floor((number - 1) / map.merge) * map.merge * map.column;

function placeColumn(rect, number) {
  rect.style.display = number ? '' : 'none';
  if (!number) return;
  rect.setAttribute('x', columnLeft(number) - 1);
  rect.setAttribute('width', Math.max(4, map.column * map.merge));
}

function stepColumn({ step, number }) {
  const group = svg('g');
  const pad = map.column >= GLYPHS_FROM_PX ? map.column * 0.16 : 0.5;
  const x = columnLeft(number) + pad;
  const width = map.column - 2 * pad;
  const height = Math.max(1.2, map.cell - (map.cell > 4 ? CELL.gap : 0.6));
  const glyphs = map.column >= GLYPHS_FROM_PX && map.cell >= 7;
  const cell = (key, y) => {
    const hollow = key === 'd' ? 0.5 : 0;
    group.append(svg('rect', { class: `L-${key}`, x: x + hollow, y: y + hollow, width: width - 2 * hollow, height: height - 2 * hollow, rx: 1 }));
    if (glyphs) { const glyph = mapGlyph(key, x + width / 2, y + height / 2); if (glyph) group.append(glyph); }
  };
  step.emitted.forEach((token, i) => cell(FATES[token.origin].key, map.axis - (i + 1) * map.cell));
  const inVain = step.drafted.filter((token) => token.fate !== 'accepted').sort((a, b) => (a.fate === 'rejected' ? 0 : 1) - (b.fate === 'rejected' ? 0 : 1));
  inVain.forEach((token, i) => {
    const y = map.axis + 3 + i * map.cell;
    if (y + map.cell <= map.height - MAP_PX.foot + 1) cell(FATES[token.fate].key, y);
  });
  return group;
}

function mapGlyph(key, x, y) {
  const paths = { c: `M${x} ${y - 2.2}l2.6 4.2h-5.2z`, b: `M${x} ${y - 2}v4M${x - 2} ${y}h4`, r: `M${x - 1.7} ${y - 1.7}l3.4 3.4m0 -3.4l-3.4 3.4` };
  return paths[key] && svg('path', { d: paths[key], class: key === 'c' ? 'bgF' : 'bgS' });
}

/** Many steps in one column: the mean of each kind, as bars. */
function mergedColumn(group) {
  const node = svg('g');
  const x = columnLeft(group[0].number);
  const width = Math.max(1, map.column * map.merge - 0.6);
  const mean = (count) => group.reduce((sum, { step }) => sum + count(step), 0) / group.length;
  let up = map.axis;
  for (const origin of ['accepted', 'target', 'corrected', 'bonus']) {
    const height = map.cell * mean((step) => step.emitted.filter((token) => token.origin === origin).length);
    up -= height;
    if (height) node.append(svg('rect', { class: `L-${FATES[origin].key}`, x, y: up, width, height }));
  }
  let down = map.axis + 3;
  for (const fate of ['rejected', 'discarded']) {
    const height = map.cell * mean((step) => step.drafted.filter((token) => token.fate === fate).length);
    if (height) node.append(svg('rect', { class: fate === 'rejected' ? 'L-r' : 'T-d', x, y: down, width, height }));
    down += height;
  }
  return node;
}

function drawMapLabels(count, selected) {
  const gap = [1, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * map.column >= 34) ?? 2000;
  const numbers = new Set([1]);
  for (let n = Math.max(gap, 5); n <= count; n += Math.max(gap, 5)) numbers.add(n);
  const key = `${gap} ${count - (count % gap)} ${count > 0} ${selected}`;
  if (map.labels._key === key && map.labels.childElementCount) return;
  map.labels._key = key;
  if (selected) { for (const n of numbers) if (Math.abs(n - selected) * map.column < 22) numbers.delete(n); numbers.add(selected); }
  map.labels.replaceChildren(...(count ? [...numbers] : []).map((n) => svg('text', {
    class: n === selected ? 'mid you bold' : 'mid', x: Math.max(5, columnLeft(n) + (map.column * map.merge) / 2), y: map.height - 3 }, n)));
}

/** Which step a place on the map belongs to. */
function stepAtX(clientX, count) {
  const x = clientX - mapBox.getBoundingClientRect().left - 2;
  return Math.min(count, Math.max(1, Math.floor(x / map.column) + 1));
}

/** A frame around the steps that the window of the strip shows, when it does not show all. */
function drawMapFrame(first, last) {
  if (!map.frame) return;
  map.frame.style.display = first ? '' : 'none';
  if (!first) return;
  map.frame.setAttribute('x', columnLeft(first) - 1.5);
  map.frame.setAttribute('width', columnLeft(last) - columnLeft(first) + map.column * map.merge + 1);
}

/** Where the replay stands, in columns, and a veil over the steps it has not reached; null for neither. */
function drawPlayhead(place, reached = null) {
  if (!map.svg) return;
  map.head.style.display = place === null ? 'none' : '';
  map.veil.style.display = reached === null ? 'none' : '';
  if (place !== null) map.head.setAttribute('transform', `translate(${(2 + place * map.column).toFixed(1)} 0)`);
  if (reached === null) return;
  const x = 2 + reached * map.column;
  map.veil.setAttribute('x', x);
  map.veil.setAttribute('width', Math.max(0, map.width - x));
}

// -- line charts --

/** One of the two readings of acceptance: over tested tokens, or over all drafted ones. */
const acceptanceLook = (define, says, total, rolling) => ({
  define, title: 'Acceptance', caption: 'by step',
  lines: [
    { key: rolling, label: (v) => `${fixed(v, 2)} last 8`, shape: 'ln S-a', end: 'a', dot: 'L-a' },
    { key: total, label: (v) => `${fixed(v, 3)} so far`, shape: 'ln thin run', end: 'ink bold', dot: 'inkF' },
  ],
  finding: (last) => `${says} by step: ${fixed(last[total], 3)} over the run, ${fixed(last[rolling], 2)} over the last 8 steps.`,
  table: [['last 8 steps', (e) => fixed(e.counters[rolling], 3)], ['so far', (e) => fixed(e.counters[total], 3)]],
});

// `looks`: what differs between the readings of `choice`, see words.js
const CHARTS = [
  {
    name: 'acceptance', top: () => 1, ticks: () => [0, 0.5, 1], choice: 'acceptance',
    looks: {
      tested: acceptanceLook('alpha', 'Per-token acceptance', 'alpha', 'rolling_alpha'),
      drafted: acceptanceLook('acceptance_rate', 'Draft acceptance rate', 'acceptance_rate', 'rolling_acceptance_rate'),
    },
  },
  {
    name: 'speed', define: 'rolling', title: 'Tokens per second', caption: 'this run, by step', top: (most) => niceTop(most), ticks: (top) => [0, top / 3, (2 * top) / 3, top],
    lines: [{ key: 'rolling_tokens_per_s', label: (v) => `${fixed(v, 1)} last 8`, shape: 'ln run', end: 'ink bold', dot: 'inkF' }],
    level: () => run.plain?.tokens_per_s, levelLabel: (v) => `${fixed(v, 1)} plain`,
    finding: (last) => `Tokens per second by step: ${fixed(last.rolling_tokens_per_s, 1)} over the last 8 steps, ${fixed(last.decode_tokens_per_s, 1)} over the run${run.plain ? `; plain decoding ${fixed(run.plain.tokens_per_s, 1)}` : ''}.`,
    table: [['last 8 steps', (e) => fixed(e.counters.rolling_tokens_per_s, 1)], ['so far', (e) => fixed(e.counters.decode_tokens_per_s, 1)]],
  },
  {
    name: 'kept', bars: true, height: 96, choice: 'step',
    looks: {
      out: {
        define: 'accepted_per_step', title: 'Accepted per step', caption: 'of the tokens drafted', front: ({ step }) => step.num_accepted, behind: ({ step }) => step.num_drafted, shade: 'T-2',
        finding: () => 'Accepted tokens by step, over the number drafted.',
        table: [['accepted', (e) => String(e.step.num_accepted)], ['drafted', (e) => whole(e.step.num_drafted)]],
      },
      in: {
        define: 'tokens_per_step', title: 'Tokens per step', caption: 'kept drafts, and the target’s own on top', front: ({ step }) => step.num_accepted, behind: ({ step }) => step.emitted.length, shade: 'inkF',
        finding: () => 'Tokens by step: accepted ones, and the target’s own on top.',
        table: [['accepted', (e) => String(e.step.num_accepted)], ['written', (e) => String(e.step.emitted.length)]],
      },
    },
  },
];
const look = (chart) => (chart.choice ? { ...chart, ...chart.looks[chosen(chart.choice)] } : chart);

/** The next number above `most` that divides into three round parts. */
function niceTop(most) {
  const scale = 10 ** Math.floor(Math.log10(Math.max(most, 1) / 3));
  return 3 * scale * ([1, 2, 3, 4, 5, 10].find((n) => 3 * scale * n >= most) ?? 10);
}

function buildCharts() {
  for (const chart of CHARTS) {
    chart.box = el('div', 'plot');
    chart.tableBox = el('div', 'tablebox');
    chart.button = el('button', 'quiet', 'Table');
    chart.button.type = 'button';
    chart.button.setAttribute('aria-expanded', 'false');
    chart.button.addEventListener('click', () => toggleTable(chart));
    chart.term = term(look(chart).define);
    chart.small = el('small');
    const head = el('div', 'fighead', el('h3', '', chart.term), chart.small, ...(chart.choice ? [chooser(chart.choice)] : []), chart.button);
    chartsBox.append(el('figure', `chart ${chart.name}`, head, chart.box, chart.tableBox));
  }
}

/** Head and labels in the words of the reading that is shown. */
function nameChart(chart) {
  const { define, title, caption } = look(chart);
  chart.term.textContent = title;
  chart.term.dataset.define = define;
  chart.small.textContent = caption;
  chart.button.setAttribute('aria-label', `Table: ${title}`);
}

function drawCharts(entries) {
  for (const chart of CHARTS.map(look)) {
    if (!chart.width) continue;
    if (!entries.length) { chart.box.replaceChildren(); continue; }
    const label = chart.finding(entries.at(-1).counters);
    const frame = { width: chart.width, height: chart.height ?? 150, left: 30, right: chart.bars ? 4 : 96, top: 8, bottom: 22 };
    const node = picture(frame.width, frame.height, label);
    if (chart.bars) drawBars(node, frame, chart, entries); else drawLines(node, frame, chart, entries);
    chart.box.replaceChildren(node);
  }
}

function scales(frame, count, top) {
  const across = frame.width - frame.left - frame.right;
  const down = frame.height - frame.top - frame.bottom;
  return {
    x: (i) => frame.left + (count > 1 ? (i / (count - 1)) * across : 0),
    y: (value) => frame.top + down * (1 - Math.min(1, value / top)),
  };
}

function drawGrid(node, frame, y, ticks) {
  for (const tick of ticks) {
    node.append(
      svg('line', { class: tick ? 'gridline' : 'axis', x1: frame.left, x2: frame.width - frame.right, y1: y(tick), y2: y(tick) }),
      svg('text', { class: 'end', x: frame.left - 6, y: y(tick) + 4 }, String(Math.round(tick * 100) / 100)),
    );
  }
}

function drawStepTicks(node, frame, x, entries) {
  const count = entries.length;
  const room = x(count - 1) - x(0);
  const gap = [5, 10, 20, 50, 100, 200, 500, 1000].find((n) => (n / count) * room >= 40) ?? 2000;
  const numbers = [1];
  for (let n = gap; n <= count; n += gap) numbers.push(n);
  for (const n of numbers) node.append(svg('text', { class: 'mid', x: x(n - 1), y: frame.height - 5 }, n));
}

function drawLines(node, frame, chart, entries) {
  const level = chart.level?.();
  const most = Math.max(level ?? 0, ...chart.lines.flatMap((line) => entries.map((entry) => entry.counters[line.key] ?? 0)));
  const top = chart.top(most);
  const { x, y } = scales(frame, entries.length, top);
  drawGrid(node, frame, y, chart.ticks(top));
  drawStepTicks(node, frame, x, entries);
  const ends = [];
  if (level != null) {
    node.append(svg('line', { class: 'ln plain', x1: frame.left, x2: frame.width - frame.right, y1: y(level), y2: y(level) }));
    ends.push({ y: y(level), x: frame.width - frame.right, text: chart.levelLabel(level), className: 't13' });
  }
  for (const line of chart.lines) {
    const points = entries.map((entry, i) => [x(i), entry.counters[line.key]]);
    const known = points.filter(([, value]) => value != null);
    if (!known.length) continue;
    node.append(svg('path', { class: line.shape, d: pathOf(points, y) }));
    const [endX, value] = known.at(-1);
    node.append(svg('circle', { class: line.dot, cx: endX, cy: y(value), r: 3 }));
    ends.push({ y: y(value), x: endX, text: line.label(value), className: `t13 ${line.end}` });
  }
  if (!ends.length) node.append(svg('text', { class: 't13', x: frame.left + 12, y: y(top / 2) - 6 }, run.counters?.steps_are_told === false ? 'Not told step by step' : 'Nothing tested yet'));
  spread(ends, 15);
  for (const end of ends) node.append(svg('text', { class: end.className, x: end.x + 8, y: end.y + 4 }, end.text));
}

/** A path that breaks where a value is missing. */
function pathOf(points, y) {
  let pen = 'M';
  let path = '';
  for (const [x, value] of points) {
    if (value == null) { pen = 'M'; continue; }
    path += `${pen}${x.toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
  }
  return path;
}

/** Moves labels apart so that they can be read. */
function spread(labels, distance) {
  labels.sort((a, b) => a.y - b.y);
  for (let i = 1; i < labels.length; i++) {
    const short = distance - (labels[i].y - labels[i - 1].y);
    if (short <= 0) continue;
    if (i === 1 && labels[0].y - short > 4) labels[0].y -= short; else labels[i].y += short;
  }
}

/** Accepted as teal columns in front of the whole; neighbours share a column where there are too many. */
function drawBars(node, frame, chart, entries) {
  const top = Math.max(1, ...entries.map((entry) => Math.max(chart.front(entry), chart.behind(entry) ?? 0)));
  const { y } = scales(frame, entries.length, top);
  const across = frame.width - frame.left - frame.right;
  const column = Math.min(27, across / entries.length);
  drawGrid(node, frame, y, [0, top]);
  drawStepTicks(node, frame, (i) => frame.left + (i + 0.5) * column, entries);
  const bars = (value) => entries.map((entry, i) => {
    const height = value(entry);
    const x = frame.left + i * column + column * 0.16;
    return height ? `M${x.toFixed(1)} ${y(0).toFixed(1)}V${y(height).toFixed(1)}h${(column * 0.68).toFixed(1)}V${y(0).toFixed(1)}z` : '';
  }).join('');
  node.append(svg('path', { class: chart.shade, d: bars(chart.behind) }), svg('path', { class: 'bar-a', d: bars(chart.front) }));
}

// -- the same data as a table, built when asked for --

function toggleTable(chart) {
  chart.open = !chart.open;
  chart.button.setAttribute('aria-expanded', String(chart.open));
  chart.tableBox.replaceChildren();
  if (chart.open) fillTable(chart, look(chart), run.entries);
}

function fillTable(chart, { title, table: columns }, entries) {
  const head = el('tr');
  for (const name of ['step', ...columns.map(([name]) => name)]) {
    const cell = el('th', 'n', name);
    cell.scope = 'col';
    head.append(cell);
  }
  const rows = el('tbody');
  for (const entry of entries) rows.append(el('tr', '', el('td', 'n', String(entry.step.index)), ...columns.map(([, value]) => el('td', 'n', value(entry)))));
  const table = el('table', 'data', el('caption', 'vh', title), el('thead', '', head), rows);
  chart.tableBox.tabIndex = 0;
  chart.tableBox.setAttribute('role', 'region');
  chart.tableBox.setAttribute('aria-label', `${title}, table`);
  chart.tableBox.append(table);
}

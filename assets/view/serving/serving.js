// ---- serving: attached servers over time, drawn from numbers that come computed ------------------------------------

const servers = $('.servers');
const boxes = new Map(); // by name: what stays from update to update, so that nothing flickers
let shown = { servers: [] };

const FIGURES_OF_A_SERVER = [
  // label, value, what stands under it, whether it is about drafts
  ['Acceptance rate', (f) => percent(f.acceptance_rate), (f) => (f.num_drafted ? `${f.num_accepted} of ${f.num_drafted} drafted` : 'nothing drafted'), true],
  ['Acceptance length τ', (f) => fixed(f.acceptance_length, 2), () => 'tokens a step that drafted', true],
  ['Drafts a second', (f) => fixed(f.drafts_per_s, 1), (f) => (f.num_drafts == null ? NO_VALUE : counted(f.num_drafts, 'draft')), true],
  ['Tokens a second', (f) => fixed(f.tokens_per_s, 1), () => 'all requests together'],
  ['Requests', (f) => whole(f.num_running), (f) => `running, ${whole(f.num_waiting)} waiting`],
];

const INK = { shape: 'ln run', dot: 'inkF', end: 'ink bold' };
const SECOND = { shape: 'ln two', dot: 'two-dot', end: 'two-end' };
const PICTURES = [
  {
    title: 'Acceptance length', caption: 'tokens a step that drafted, τ', least: 3, drafting: true,
    lines: [{ key: 'acceptance_length', name: '', digits: 2, ...INK }],
  },
  { title: 'Acceptance by place in the draft', caption: 'of all drafts in the history', bars: true, drafting: true },
  {
    title: 'Drafts and tokens', caption: 'a second',
    lines: [{ key: 'tokens_per_s', name: 'tokens', digits: 1, ...INK }, { key: 'drafts_per_s', name: 'drafts', digits: 1, ...SECOND }],
  },
  {
    title: 'Requests', caption: 'at the moment', least: 3,
    lines: [{ key: 'num_running', name: 'running', digits: 0, ...INK }, { key: 'num_waiting', name: 'waiting', digits: 0, ...SECOND }],
  },
];

function takeServers(text) {
  let value;
  try { value = JSON.parse(text); } catch { return; }
  if (!Array.isArray(value?.servers)) return;
  shown = value;
  $('.none').hidden = shown.servers.length > 0;
  for (const server of shown.servers) drawServer(server);
}

function boxOf(name) {
  if (boxes.has(name)) return boxes.get(name);
  const box = { title: el('small'), said: el('p', 'said'), alarms: el('div'), hints: el('div'), replicas: el('div'), advice: el('div'), figures: [], plots: [] };
  box.alarms.setAttribute('role', 'status');
  const list = el('dl', 'kpis');
  for (const [label, , , drafting] of FIGURES_OF_A_SERVER) {
    const figure = { big: el('span', '', NO_VALUE), small: el('small', '', NO_VALUE) };
    box.figures.push(figure);
    list.append(el('div', drafting ? 'drafting' : '', el('dt', '', label), el('dd', '', figure.big, figure.small)));
  }
  const charts = el('div', 'charts');
  for (const { title, caption, drafting } of PICTURES) {
    const plot = el('div', 'plot');
    box.plots.push(plot);
    charts.append(el('figure', drafting ? 'chart drafting' : 'chart', el('div', 'fighead', el('h3', '', title), el('small', '', caption)), plot));
    resized.observe(plot);
  }
  box.window = el('p', 'vh', 'Figures of the last minute.');
  box.node = el('section', 'server', el('div', 'head', el('h2', '', name), box.title), box.said, box.alarms, box.hints, box.window, list, box.replicas, charts, box.advice);
  box.node.setAttribute('aria-label', `Server ${name}`);
  servers.append(box.node);
  boxes.set(name, box);
  return box;
}

function drawServer(server) {
  const box = boxOf(server.name);
  box.node.className = `server ${server.state}${server.figures.num_running == null && !server.ago_s.length ? ' unheard' : ''}`;
  box.title.textContent = server.title;
  box.said.textContent = server.said;
  box.said.hidden = !server.said;
  if (box.alarms.textContent !== server.alarms.join('')) box.alarms.replaceChildren(...server.alarms.map((text) => el('p', 'alarm', text)));
  const hints = server.hints ?? [];
  if (box.hints.textContent !== hints.join('')) box.hints.replaceChildren(...hints.map((text) => el('p', 'said', text)));
  FIGURES_OF_A_SERVER.forEach(([, big, small], i) => {
    box.figures[i].big.textContent = big(server.figures);
    box.figures[i].small.textContent = small(server.figures);
  });
  fillReplicas(box.replicas, server.replicas ?? []);
  fillAdvice(box, server.advice);
  drawPlots(server, box);
}

const REPLICA_COLUMNS = [
  ['Server', (one) => one.name],
  ['Acceptance', (one) => percent(one.figures.acceptance_rate)],
  ['τ', (one) => fixed(one.figures.acceptance_length, 2)],
  ['Drafts/s', (one) => fixed(one.figures.drafts_per_s, 1)],
  ['Tokens/s', (one) => fixed(one.figures.tokens_per_s, 1)],
  ['Running', (one) => whole(one.figures.num_running)],
  ['Waiting', (one) => whole(one.figures.num_waiting)],
];

function fillReplicas(node, replicas) {
  const rows = replicas.map((one) => (one.state === 'silent' ? [one.name, ...REPLICA_COLUMNS.slice(1).map(() => NO_VALUE)] : REPLICA_COLUMNS.map(([, show]) => show(one))));
  refill(node, rows, () => (rows.length ? [tableOf('Replicas side by side, last minute', REPLICA_COLUMNS.map(([head]) => head), rows)] : []));
}

/** Only where something changed: a reader's place and a choice stay. */
function refill(node, what, build) {
  const key = JSON.stringify(what);
  if (node._key === key) return;
  node._key = key;
  node.replaceChildren(...build());
}

function tableOf(title, heads, rows, isMarked = () => false) {
  const cells = (row, i) => row.map((text, j) => {
    const cell = el(j ? 'td' : 'th', isMarked(i, j) ? 'best' : '', text);
    if (!j) cell.scope = 'row';
    return cell;
  });
  const head = el('tr', '', ...heads.map((text) => { const cell = el('th', '', text); cell.scope = 'col'; return cell; }));
  const table = el('table', '', el('thead', '', head), el('tbody', '', ...rows.map((row, i) => el('tr', '', ...cells(row, i)))));
  table.setAttribute('aria-label', title);
  const around = el('div', 'wide', el('p', 'over', title), table);
  around.tabIndex = 0; // what is wider than a phone is scrolled by keys too
  around.setAttribute('role', 'region');
  around.setAttribute('aria-label', title);
  return around;
}

function fillAdvice(box, advice) {
  const sumsWereOpen = box.advice.querySelector('details')?.open;
  refill(box.advice, advice, () => {
    if (!advice) return [];
    const heads = ['γ', 'Tokens a step', 'Pays below', ...advice.loads.map((n) => `× plain at ${n}`)];
    const rows = advice.rows.map((row) => [row.gamma, fixed(row.tokens, 2), fixed(row.break_even, 2), ...row.speed_up.map((gain) => fixed(gain, 2))].map(String));
    const isBest = (i, j) => j > 2 && advice.rows[i].is_best[j - 3];
    const parts = [
      el('h3', '', 'What would pay'),
      el('p', 'answer', advice.answer),
      tableOf('Draft lengths: tokens a step that drafts, what a drafted token may cost in plain steps, and the gain by requests at once', heads, rows.map((row, i) => row.map((text, j) => (isBest(i, j) ? `${text} best` : text))), isBest),
    ];
    if (advice.num_engines > 1) parts.push(el('p', 'said', `Requests are those of each of the ${advice.num_engines} engines behind this address.`));
    if (advice.modelled) parts.push(el('p', 'said', 'This engine counts no places: each is taken to be kept as often as the others, as in Leviathan’s model.'));
    if (advice.line) parts.push(lineToCopy(advice.line));
    if (advice.line.includes('"..."')) parts.push(el('p', 'said', 'Keep your own method, and its other settings, in place of "...".'));
    if (advice.sums.length) {
      const sums = el('details', '', el('summary', '', 'The sum'), ...advice.sums.map((text) => el('p', 'said', text)));
      sums.open = Boolean(sumsWereOpen);
      parts.push(sums);
    }
    const node = el('div', 'advice', ...parts);
    return [node];
  });
}

function lineToCopy(line) {
  const code = el('code', '', line);
  const button = el('button', 'quiet', 'Copy');
  button.type = 'button';
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = 'Copied';
    } catch { // a page without https may not write there
      getSelection().selectAllChildren(code);
      button.textContent = 'Selected: press Ctrl+C';
    }
  });
  return el('p', 'line', code, button);
}

function drawPlots(server, box) {
  PICTURES.forEach((picture, i) => {
    const plot = box.plots[i];
    const width = Math.floor(plot.clientWidth);
    if (!width) return;
    const frame = { width, height: 150, left: 34, right: picture.bars ? 4 : 104, top: 8, bottom: 22 };
    plot.replaceChildren(picture.bars ? positionBars(server, frame) : timeLines(server, picture, frame));
  });
}

const ticksTo = (top) => [0, top / 3, (2 * top) / 3, top];
const spokenTime = (ago) => (ago >= 90 ? `${Math.round(ago / 60)} min ago` : ago ? `${Math.round(ago)} s ago` : 'now');

function timeLines({ name, ago_s: ago, series }, chart, frame) {
  const known = chart.lines.flatMap((line) => series[line.key].filter((value) => value != null));
  const top = niceTop(Math.max(chart.least ?? 0, 0.3, ...known));
  const last = (line) => series[line.key].findLast((value) => value != null);
  const told = chart.lines.map((line) => `${line.name || chart.title} ${fixed(last(line), line.digits)}`).join(', ');
  const node = picture(frame.width, frame.height, `${chart.title} of ${name}: ${told}`);
  const { y } = scales(frame, 2, top);
  const across = frame.width - frame.left - frame.right;
  const oldest = Math.max(...ago, 1); // seconds
  const x = (seconds) => frame.left + across * (1 - seconds / oldest);
  drawGrid(node, frame, y, ticksTo(top));
  for (const seconds of ago.length > 1 ? [oldest, 0] : [0]) node.append(svg('text', { class: seconds ? '' : 'end', x: x(seconds), y: frame.height - 5 }, spokenTime(seconds)));
  const ends = [];
  for (const line of chart.lines) {
    const points = ago.map((seconds, i) => [x(seconds), series[line.key][i]]);
    const end = points.findLast(([, value]) => value != null);
    if (!end) continue;
    node.append(svg('path', { class: line.shape, d: pathOf(points, y) }), svg('circle', { class: line.dot, cx: end[0], cy: y(end[1]), r: 3 }));
    ends.push({ y: y(end[1]), x: end[0], text: `${fixed(end[1], line.digits)} ${line.name}`.trim(), className: `t13 ${line.end}` });
  }
  if (!ends.length) node.append(svg('text', { class: 't13', x: frame.left + 12, y: y(top / 2) - 6 }, 'Nothing yet'));
  spread(ends, 15);
  for (const end of ends) node.append(svg('text', { class: end.className, x: frame.width - frame.right + 8, y: end.y + 4 }, end.text));
  return node;
}

function positionBars({ name, positions, tells_places: isTold }, frame) {
  const empty = isTold === false ? 'Not counted by this engine' : 'Nothing drafted yet';
  const told = positions.map((share, i) => `${i + 1}: ${percent(share)}`).join(', ');
  const node = picture(frame.width, frame.height, `Acceptance by place in the draft of ${name}: ${told || empty.toLowerCase()}`);
  const { y } = scales(frame, 2, 1);
  drawGrid(node, frame, y, [0, 0.5, 1]);
  const column = Math.min(80, (frame.width - frame.left - frame.right) / Math.max(1, positions.length));
  positions.forEach((share, i) => {
    const middle = frame.left + (i + 0.5) * column;
    node.append(svg('text', { class: 'mid', x: middle, y: frame.height - 5 }, i + 1));
    if (share == null) return;
    node.append(
      svg('rect', { class: 'bar-a', x: middle - column * 0.36, width: column * 0.72, y: y(share), height: Math.max(0, y(0) - y(share)) }),
      svg('text', { class: 'mid ink', x: middle, y: y(share) - 4 }, percent(share)),
    );
  });
  if (!positions.some((share) => share != null)) node.append(svg('text', { class: 't13', x: frame.left + 12, y: y(0.5) - 6 }, empty));
  return node;
}

const resized = new ResizeObserver(batched(() => { for (const server of shown.servers) drawPlots(server, boxOf(server.name)); }));

watch('value', () => takeServers(props.value));
takeServers(props.value);

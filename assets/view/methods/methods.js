// ---- methods: one step as its method sees it ------------------------------------------------------------------------
// A drawing is made of an entry of the run and the data of its note: `finding` is its sentence, `box` its nodes,
// `head(width)` a picture over them, `settle()` what can be drawn only once they are in the page.

const seen = $('.panel[data-panel=methods]');
const seenPart = (selector) => $(selector, seen);
const wayTexts = new Map([...seen.querySelectorAll('.ways [data-method]')].map((way) => [way.dataset.method, way]));
let seenKey = '';
let settleSeen = null;

/** How much of a method a step shows: tokens kept, and above all a refusal. */
const worth = ({ step }) => Math.min(step.num_accepted, 3) + 2 * step.drafted.some((token) => token.fate === 'rejected');

/** The chosen step; until one is chosen the newest, and of a finished run one that shows what can happen. */
function seenEntry() {
  const entries = run.entries ?? [];
  if (entries[selected - 1]) return entries[selected - 1];
  if (run.phase === 'running') return entries.at(-1);
  return entries.reduce((best, entry) => (worth(entry) >= worth(best) ? entry : best), entries[0]);
}

const drawMethodsSometimes = atMostEvery(400, () => showSeen());

function drawMethods() {
  if (run.phase === 'running' && !selected) drawMethodsSometimes(); else showSeen();
}

function showSeen() {
  const entry = run.start && seenEntry();
  for (const part of ['.pick', '.method']) seenPart(part).hidden = !entry;
  seenPart('.instead').hidden = Boolean(run.start);
  if (!entry) {
    seenKey = '';
    seenPart('.found').textContent = run.start ? 'No step yet' : 'No run yet';
    return;
  }
  showPicker(entry);
  showWay(entry);
  const width = Math.floor(seenPart('.drawing').clientWidth);
  const key = [run.id, entry.number, width, entry.number < run.entries.length].join(' ');
  if (key === seenKey) return;
  seenKey = key;
  showDrawing(entry, width);
}

/** Title, summary and word of the method. */
function showWay({ step }) {
  const { start } = run;
  const { coverage } = run.counters ?? {};
  const way = wayTexts.get(start.method);
  seenPart('.title').textContent = wayTitle(start.method);
  seenPart('.badge').textContent = start.exactness;
  seenPart('.badge').title = start.exactness_reason;
  seenPart('.summary').textContent = way ? $('dd', way).textContent : 'Another program drafts and checks. This page shows what it sends.';
  const work = step.num_again ? 'two passes, checked twice' : step.target_work === 1 ? 'one pass' : `${fixed(step.target_work, 2)} passes`;
  const facts = [step.rows ? `${counted(step.emitted.length, 'token')} from ${work}` : counted(step.emitted.length, 'token')];
  if (coverage != null && step.num_drafted != null && start.method !== 'plain') facts.push(`${percent(coverage)} of steps drafted${run.phase === 'running' ? ' so far' : ''}`);
  seenPart('.facts').textContent = facts.join(' · ');
  for (const [name, node] of wayTexts) node.classList.toggle('on', name === start.method);
}

function wayTitle(name) {
  const way = wayTexts.get(name);
  return way ? $('dt', way).textContent : name === 'attached' ? 'Attached server' : name;
}

function showDrawing(entry, width) {
  const { step } = entry;
  const data = step.note?.data ?? {};
  const drawing = makeDrawing(entry, data);
  seenPart('.found').textContent = drawing.finding;
  showAsked(data);
  const image = el('div', 'image', ...(drawing.head ? [drawing.head(width)] : []), drawing.box);
  image.setAttribute('role', 'img');
  image.setAttribute('aria-label', `${drawing.finding} ${stepSentence(step)}`);
  const scroller = el('div', 'scroller', image);
  seenPart('.drawing').replaceChildren(scroller);
  if (scroller.scrollWidth > scroller.clientWidth) {
    scroller.tabIndex = 0;
    scroller.setAttribute('role', 'region');
    scroller.setAttribute('aria-label', 'The drawing, wider than the page');
  }
  settleSeen = drawing.settle;
  settleSeen?.();
}

function makeDrawing(entry, data) {
  const { step } = entry;
  const own = Object.hasOwn(methodDrawings, step.note?.kind ?? '') ? methodDrawings[step.note.kind](entry, data) : null;
  if (own) return own;
  if (step.num_drafted == null) return drawServed(entry);
  if (run.start.method === 'plain') return drawPlain(entry);
  return drawTree(entry, {}) ?? drawAlone(entry);
}

/** In a cascade: who was asked in turn, and who spoke. */
function showAsked({ passed, joined, from }) {
  const isAmount = (value) => Number.isFinite(value) && value >= 0;
  const isAsked = (one) => Array.isArray(one) && typeof one[0] === 'string' && isAmount(one[1]) && isAmount(one[2]);
  const before = Array.isArray(passed) ? passed.filter(isAsked) : [];
  const promise = (value) => `${fixed(value, 1)}\u00a0tokens`;
  const why = (found, needed) => (found ? `${promise(found)} expected, ${promise(needed)} needed` : 'nothing to offer');
  const items = before.map(([name, found, needed]) => el('li', '', el('b', '', wayTitle(name)), el('small', '', why(found, needed))));
  for (const name of Array.isArray(joined) ? joined.filter((one) => typeof one === 'string') : []) {
    items.push(el('li', 'spoke', el('b', '', wayTitle(name)), el('small', '', 'in the same tree')));
  }
  if (typeof from === 'string') items.push(el('li', 'spoke', el('b', '', wayTitle(from)), el('small', '', 'drafted')));
  seenPart('.asked').hidden = !items.length;
  seenPart('.asked').replaceChildren(...items);
}

// -- the step picker --

function showPicker({ number }) {
  const count = run.entries.length;
  const place = seenPart('.place');
  const hint = selected ? '' : run.phase === 'running' ? 'the newest' : 'as an example';
  place.replaceChildren(el('b', '', `Step ${number}`), ` of ${count}`, ...(hint ? [el('small', '', hint)] : []));
  seenPart('.prev').disabled = number <= 1;
  seenPart('.next').disabled = number >= count;
}

function pickStep(by) {
  const number = seenEntry()?.number;
  if (number && run.entries[number - 1 + by]) select(number + by);
}

seenPart('.prev').addEventListener('click', () => pickStep(-1));
seenPart('.next').addEventListener('click', () => pickStep(1));
seen.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.target.closest('.scroller')) return;
  const count = run.entries?.length ?? 0;
  const moves = { ArrowLeft: () => pickStep(-1), ArrowRight: () => pickStep(1), Home: () => select(1), End: () => select(count) };
  if (!count || !Object.hasOwn(moves, event.key)) return;
  moves[event.key]();
  event.preventDefault();
});

new ResizeObserver(batched(() => { if (panelInView === 'methods') { drawPanel(); settleSeen?.(); } })).observe(seenPart('.drawing'));
addPanel('methods', drawMethods);

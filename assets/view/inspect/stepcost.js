// ---- stepcost: what one step cost: its time against plain decoding, and what it left in the target's cache ------------

const COST_PX = { bar: 22, left: 76, after: 98 };
const RULER_PX = { row: 30, cell: 22, left: 92, least: 27, most: 70, gap: 1.5, head: 20 };
const NUM_OLD = 4; // entries shown of those that were there before

// -- time --

/** The step's time over as many passes of plain decoding as it wrote tokens. */
function drawCost(width, step, plain) {
  const tokens = step.emitted.length;
  const took = step.clock[3] - step.clock[0];
  const isCompared = plain?.s_per_token != null && run.start.method !== 'plain';
  const longest = Math.max(took, isCompared ? tokens * plain.s_per_token : 0) || 1; // a step whose time is the prompt's has none
  const room = width - COST_PX.left - COST_PX.after;
  const px = (time) => (room * time) / longest;
  const node = picture(width, isCompared ? 68 : 28, costLabel(step, isCompared ? plain : null));
  let x = COST_PX.left;
  node.append(svg('text', { x: 0, y: 17, class: 'ink t13' }, 'this step'));
  for (const [name, time] of [['draft', step.draft_s], ['verify', step.verify_s], ['other', step.other_s]]) {
    if (!time) continue;
    node.append(svg('rect', { x, y: 2, width: Math.max(0.75, px(time) - 1), height: COST_PX.bar, rx: 1, class: `C-${name}` }));
    x += px(time);
  }
  node.append(svg('text', { x: x + 8, y: 18, class: 'ink t13 bold' }, step.with_prompt ? 'read with the prompt' : milliseconds(took)));
  if (!isCompared) return node;
  node.append(svg('text', { x: 0, y: 59, class: 't13' }, 'plain'));
  for (let i = 0; i < tokens; i++) node.append(svg('rect', { x: COST_PX.left + px(i * plain.s_per_token), y: 44, width: Math.max(0.75, px(plain.s_per_token) - 1.5), height: COST_PX.bar, rx: 1, class: 't-plain' }));
  node.append(svg('text', { x: COST_PX.left + px(tokens * plain.s_per_token) + 8, y: 60, class: 't13' }, plainProduct(tokens, plain)));
  return node;
}

/** Plain decoding was not timed at this very place: a mean pass, times the tokens. */
const plainProduct = (tokens, plain) => `${tokens} × ${fixed(plain.s_per_token * 1000, 1)}\u00a0ms`;

const stepTimes = (step) => (step.with_prompt ? 'in the prompt’s' : `draft ${milliseconds(step.draft_s)}, check ${milliseconds(step.verify_s)}, other ${milliseconds(step.other_s)}`);

const costLabel = (step, plain) => `Time of step ${step.index}: ${stepTimes(step)}${plain ? `; plain decoding ${plainProduct(step.emitted.length, plain)}` : ''}`;

function costKey(step) {
  const names = [['draft', 'draft', step.draft_s], ['verify', isTold(step) ? 'check' : 'server', step.verify_s], ['other', 'other', step.other_s]];
  return names.filter(([, , time]) => time).map(([name, text, time]) => el('span', '', el('i', `swatch ${name}`), `${text} ${milliseconds(time)}`));
}

function costWords(step, plain) {
  const ms = (time) => el('b', '', `${fixed(time * 1000, 1)}\u00a0ms`);
  if (step.with_prompt) return prose('The pass that read the prompt also checked this draft, so its time is in the ', ms(run.counters.prefill_s), ' of the prompt, and in no rate.');
  const each = prose('This step took ', ms(step.s_per_token), ' a token.');
  if (run.start.method === 'plain') return each;
  if (plain?.s_per_token == null) { each.append(' Measure plain decoding to see whether that pays.'); return each; }
  each.append(' Plain decoding takes ', ms(plain.s_per_token), ' on average. ');
  each.append(step.s_per_token < plain.s_per_token ? 'The step paid for itself.' : 'This step alone lost time.');
  return each;
}

// -- cache --

/** Rows of the pass that only fill it up; recordings from before this was told have passes of one width. */
const padding = (step) => step.num_padding || (run.start.width > 0 && !run.start.min_rows && step.rows === run.start.width ? step.cache.extra : 0);

/** Columns of the ruler: a few entries from before, then what the pass wrote ahead, kept path first. */
function rulerColumns(step, before) {
  const { cache } = step;
  const columns = [];
  const isPadding = padding(step) > 0;
  const root = before.at(-1);
  for (const token of before.slice(0, -1)) columns.push({ kind: 'old', token });
  columns.push({ kind: 'root', token: root });
  for (const fate of ['accepted', 'rejected', 'discarded']) for (const token of withFate(step, fate)) columns.push({ kind: fate, token });
  for (let i = 0; i < cache.extra; i++) columns.push({ kind: 'extra', label: isPadding ? 'pad' : 'scored' });
  return columns;
}

/** Many alike stand for themselves as one, with their number. */
function foldColumns(columns, most) {
  for (const kind of ['extra', 'discarded', 'old', 'rejected', 'accepted']) {
    if (columns.length <= most) return columns;
    const alike = columns.filter((one) => one.kind === kind);
    const over = Math.min(alike.length, columns.length - most + 1);
    if (over < 2) continue;
    const folded = kind === 'old' ? alike.slice(0, over) : alike.slice(-over);
    const at = columns.indexOf(folded[0]);
    columns = columns.filter((one) => !folded.includes(one));
    if (kind !== 'old') columns.splice(at, 0, { kind, label: `×${over}` });
  }
  return columns;
}

/** Entries of the target's cache before, during and after the step's pass. `before`: the tokens up to the step. */
function drawRuler(width, step, before) {
  const { cache } = step;
  const room = width - RULER_PX.left;
  const columns = foldColumns(rulerColumns(step, before), Math.floor(room / RULER_PX.least));
  const cell = Math.min(RULER_PX.most, room / (columns.length + 0.6));
  const start = RULER_PX.left + cell * 0.6; // entries further back, cut off at the left
  const node = picture(width, RULER_PX.head + 3 * RULER_PX.row, rulerLabel(cache));
  const roomy = Math.floor((cell - 4) / 7.5);
  columns.forEach(({ token, label, kind }, i) => {
    const text = label ?? spoken(token);
    const shown = text.length <= roomy ? text : roomy >= 3 ? `${text.slice(0, roomy - 1)}…` : '';
    const ink = kind === 'rejected' ? 'r strike' : kind === 'discarded' || kind === 'extra' ? '' : 'ink';
    node.append(svg('text', { x: start + (i + 0.5) * cell, y: 13, class: `mid t13 ${ink}` }, shown));
  });
  const line = (name, number, y, className, shape) => {
    const group = svg('g', { class: className });
    group.append(svg('text', { x: 0, y: y + 15, class: 'ink t13' }, name), svg('text', { x: RULER_PX.left - 10, y: y + 15, class: 'end t13' }, number));
    group.append(svg('rect', { x: RULER_PX.left, y, width: start - RULER_PX.left - RULER_PX.gap, height: RULER_PX.cell, rx: 1, class: 'K-kept' }));
    columns.forEach(({ kind }, i) => {
      const drawn = shape(kind);
      const x = start + i * cell;
      group.append(drawn
        ? svg('rect', { x: x + 0.5, y: y + 0.5, width: cell - RULER_PX.gap - 1, height: RULER_PX.cell - 1, rx: 1, class: drawn })
        : svg('rect', { x, y: y + RULER_PX.cell - 1, width: cell - RULER_PX.gap, height: 1, class: 'T-2' }));
    });
    node.append(group);
  };
  const y = (row) => RULER_PX.head + row * RULER_PX.row + 4;
  line('before', cache.before, y(0), '', (kind) => (kind === 'old' ? 'K-kept' : null));
  line('checked', cache.checked, y(1), 'from-verify', (kind) => ({ old: 'K-kept', extra: 'K-extra' })[kind] ?? 'K-ahead');
  line('after', cache.after, y(2), 'from-commit', (kind) => (kind === 'extra' ? null : kind === 'rejected' || kind === 'discarded' ? 'K-back' : 'K-kept'));
  return node;
}

const rulerLabel = (cache) => `Entries in the target's cache: ${cache.before} before, ${cache.checked} checked, ${cache.after} after`;

function rulerTitle({ cache, drafted, num_accepted }) {
  const back = drafted.length - num_accepted;
  return back ? `The cache: written ahead, then rolled back by ${inWords(back)}` : 'The cache: what was written ahead stays';
}

function rulerWords(step) {
  const own = ownToken(step);
  const parts = [];
  if (own) parts.push(`${capital(quotedToken(own))} has no entry yet: it is fed in the next step.`);
  if (step.drafted.some((token, i) => token.fate === 'accepted' && i >= step.num_accepted)) parts.push('Kept entries of the tree are moved together.');
  const { extra } = step.cache;
  if (extra && padding(step)) {
    const filler = `${capital(countedInWords(extra, 'row'))} of the ${inWords(step.rows)} ${extra === 1 ? 'is' : 'are'} padding`;
    const why = run.start.min_rows && run.start.min_rows !== run.start.width
      ? ': a pass has at least so many, and its bits are the same however many tokens share it.' : ', there to keep every pass equally wide.';
    parts.push(filler + why);
  }
  else if (extra) parts.push(`${capital(countedInWords(extra, 'row'))} of the ${inWords(step.rows)} ${were(extra)} scored for the drafter’s own use.`);
  return parts.join(' ');
}

// ---- words: what each number means, one hover, focus or tap away, and which of its variants is shown --------------
// A definition: name, words first, formula second, the run's own numbers third, more, unit. Values come from the server.

// -- variants: the same counts in two readings; the visitor's choice is kept --

const CHOICES = {
  acceptance: { label: 'Acceptance of', tested: 'tested', drafted: 'drafted' },
  pass: { label: 'Tokens counted per pass', in: 'all', out: 'drafts only' },
  step: { label: 'Tokens counted per step', out: 'drafts only', in: 'all' },
  places: { label: 'Acceptance by place', conditional: 'where tested', unconditional: 'of all drafts' },
};
const optionsOf = (choice) => Object.keys(CHOICES[choice]).filter((name) => name !== 'label');

const picked = {};

function chosen(choice) {
  const kept = picked[choice] ?? remembered.get(choice);
  return optionsOf(choice).includes(kept) ? kept : optionsOf(choice)[0];
}

function chooser(choice) {
  const group = el('div', 'seg choice');
  group.setAttribute('role', 'group');
  group.setAttribute('aria-label', CHOICES[choice].label);
  for (const option of optionsOf(choice)) {
    const button = el('button', '', CHOICES[choice][option]);
    button.type = 'button';
    button.dataset.choose = `${choice}:${option}`;
    group.append(button);
  }
  return group;
}

/** Shows what is chosen: everywhere in the view, and in the figures after a run, which are Plotly's. */
function showChoices() {
  for (const button of document.querySelectorAll('[data-choose]')) {
    const [choice, option] = button.dataset.choose.split(':');
    if (CHOICES[choice]) button.setAttribute('aria-pressed', String(chosen(choice) === option));
  }
  for (const chart of CHARTS) nameChart(chart);
  nameFigures();
  const plot = document.querySelector('#after .places .js-plotly-plot');
  const variants = plot?.data?.map((trace) => trace.meta);
  if (!variants?.includes(chosen('places'))) return;
  const visible = variants.map((variant) => variant === chosen('places'));
  if (plot.data.some((trace, i) => (trace.visible ?? true) !== visible[i])) window.Plotly.restyle(plot, { visible });
}

document.addEventListener('click', ({ target }) => {
  const [choice, option] = target.dataset?.choose?.split(':') ?? [];
  if (!CHOICES[choice]) return;
  picked[choice] = option;
  remembered.set(choice, option);
  showChoices();
  for (const chart of CHARTS.filter(({ open }) => open)) { toggleTable(chart); toggleTable(chart); }
  render();
});

// -- definitions --

// Where guesses were tried side by side, more are refused than places are.
const inTree = (c) => c.num_rejected > c.num_rejections;
const equals = (sum, value) => `= ${sum} = ${value}`;

const WORDS = {
  speed_up: {
    name: 'Speed-up', unit: 'times',
    words: 'How many times faster this run wrote its tokens than plain decoding of the same prompt, measured along with it. Under 1 is slower.',
    formula: 'tokens a second of this run / of plain decoding',
    numbers: (c) => equals(`${fixed(c.decode_tokens_per_s, 1)} / ${fixed(run.plain?.tokens_per_s, 1)}`, fixed(run.verdict?.speed_up, 2)),
    more: 'Plain decoding runs one token a pass, in the same number format, on the same machine, in the same minutes. Reading the prompt is not in either.',
  },
  alpha: {
    name: 'Per-token acceptance α', unit: 'no unit, 0 to 1',
    words: 'Of the drafted tokens the target tested, the share it kept. Tokens after a refusal were never tested, so they do not count.',
    formula: 'α = accepted / (accepted + steps with a refusal)',
    numbers: (c) => equals(`${whole(c.num_accepted)} / (${whole(c.num_accepted)} + ${whole(c.num_rejections)})`, fixed(c.alpha, 3)),
    more: 'The formulas use this one. The draft acceptance rate also counts the untested, so it falls when drafts get longer. Guesses tried side by side for one place count once.',
  },
  acceptance_rate: {
    name: 'Draft acceptance rate', unit: 'percent',
    words: 'Of all drafted tokens, the share that was kept. What was never tested counts as not kept.',
    formula: 'accepted / drafted',
    numbers: (c) => equals(`${whole(c.num_accepted)} / ${whole(c.num_drafted)}`, fixed(c.acceptance_rate, 3)),
    more: 'A low rate means much wasted drafting, not always a bad draft.',
  },
  block_efficiency: {
    name: 'Tokens per target pass', unit: 'tokens a pass',
    words: 'Tokens written per target pass (block efficiency). Plain decoding writes 1.',
    formula: 'tokens / target passes',
    numbers: (c) => equals(`${whole(c.num_tokens)} / ${whole(c.target_work)}`, fixed(c.block_efficiency, 2)),
    more: 'Passes over the prompt are left out. A pass of part of the layers counts as that part. Every step ends in a token of the target’s own: a correction, or a bonus after a fully kept draft.',
  },
  accepted_per_pass: {
    name: 'Kept drafts per pass', unit: 'tokens a pass',
    words: 'How many drafted tokens one pass of the target keeps. The token that the target writes itself at the end of a step is left out, so plain decoding brings 0.',
    formula: 'accepted / target passes',
    numbers: (c) => equals(`${whole(c.num_accepted)} / ${whole(c.target_work)}`, fixed(c.accepted_per_pass, 2)),
    more: 'Some papers report this one. It is about one less than tokens per target pass.',
  },
  tokens_per_s: {
    name: 'Tokens per second', unit: 'tokens a second',
    words: 'How fast tokens come once the prompt has been read.',
    formula: 'tokens / seconds of all steps',
    numbers: (c) => equals(`${whole(c.num_tokens)} / ${seconds(c.decode_s)}`, fixed(c.decode_tokens_per_s, 1)),
    more: 'Reading the prompt is not in it; the first token waits for that and for the first step.',
  },
  times: {
    name: 'Where the time went', unit: 'seconds',
    words: 'Drafting, checking by the target, and all the rest, sampling included.',
    formula: 'draft + check + other',
    numbers: (c) => equals(`${seconds(c.draft_s)} + ${seconds(c.verify_s)} + ${seconds(c.other_s)}`, seconds(c.decode_s)),
    more: 'Drafting pays only if it takes less time than the passes it saves.',
  },
  map: {
    name: 'The run at a glance', unit: 'tokens a step',
    words: 'One column a step. Above the line: the tokens it wrote, kept drafts first, then the target’s own. Below: refused drafts, then untested ones.',
    formula: 'written = kept + 1',
    numbers: (c) => `${whole(c.num_tokens)} tokens in ${whole(c.num_steps)} steps`,
    more: 'Where a run has more steps than there is room for, neighbours share a column and show their mean.',
  },
  rolling: {
    name: 'Tokens per second, by step', unit: 'tokens a second',
    words: 'How fast the last 8 steps wrote. The dashed line is plain decoding of the same prompt.',
    formula: 'tokens of 8 steps / their seconds',
    more: 'Only time inside steps counts; drawing this page is not in it.',
  },
  accepted_per_step: {
    name: 'Accepted per step', unit: 'tokens a step',
    words: 'Green: drafted tokens kept in each step. Grey behind: tokens drafted.',
    formula: 'mean = accepted / steps that drafted',
    numbers: (c) => equals(`${whole(c.num_accepted)} / ${whole(c.num_drafting_steps)}`, fixed(c.mean_accepted, 2)),
    more: 'Counted with the target’s own token it is the acceptance length τ.',
  },
  tokens_per_step: {
    name: 'Tokens per step', unit: 'tokens a step',
    words: 'Green: drafted tokens kept in each step. On top: the one that the target wrote itself.',
    formula: 'τ = 1 + accepted / steps that drafted',
    numbers: (c) => equals(`1 + ${whole(c.num_accepted)} / ${whole(c.num_drafting_steps)}`, fixed(c.acceptance_length, 2)),
    more: 'τ is the acceptance length: what a step that drafted brings, on average.',
  },
  kept: {
    name: 'Steps by tokens kept', unit: 'steps',
    words: 'How many steps kept none of their draft, how many one token of it, and so on. Steps without a draft are left out.',
    formula: 'height at k = steps that kept exactly k',
    numbers: (c) => `${whole(c.num_drafting_steps)} of ${whole(c.num_steps)} steps drafted`,
  },
  places: {
    name: 'Acceptance by place in the draft', unit: 'no unit, 0 to 1',
    words: 'How often the first, second, third … drafted token was kept. “Where tested” asks only the steps in which that place was tested; “of all drafts” asks every step that drafted, so it falls from place to place.',
    formula: 'kept at a place / tested there, or / steps that drafted',
    more: 'The bars’ thin lines are 95 % Wilson intervals: with few counts they are long.',
  },
  step_times: {
    name: 'Time by step', unit: 'milliseconds',
    words: 'What each step spent on drafting, on checking by the target, and on the rest. Numbers at the right are means.',
    formula: 'step = draft + check + other',
    numbers: (c) => equals(`${seconds(c.decode_s)} / ${whole(c.num_steps)} steps`, milliseconds(c.s_per_step)),
    more: 'The dashed line is one step of plain decoding, which writes one token.',
  },
  draft_prob: { name: 'draft', words: 'q: the probability that the draft gave to this token.', unit: 'no unit, 0 to 1', more: 'In a greedy run it is shown for information; the test asks for first choices only.' },
  target_prob: { name: 'target', words: 'p: the probability that the target gave to this token.', unit: 'no unit, 0 to 1', more: 'In a greedy run it is shown for information; the test asks for first choices only.' },
  accept_prob: { name: 'chance', words: 'The chance that this token is kept. Where the target likes it at least as well as the draft, it is certain.', formula: 'min(1, p / q)', unit: 'no unit, 0 to 1' },
  coin: { name: 'coin', words: 'A random number, drawn anew for every tested token. Under the chance, the token is kept.', formula: 'kept if coin < min(1, p / q)', unit: 'no unit, 0 to 1' },
  one_step: { name: 'times', words: 'What this step spent on drafting, on checking by the target, and on the rest, sampling included.', formula: 'step = draft + check + other', unit: 'milliseconds' },
};

const FATE_WORDS = Object.fromEntries(Object.entries(FATES).map(([fate, { means }]) => [fate, {
  name: fate === 'target' ? 'no draft' : fate, words: means, unit: 'tokens', more: 'Press to dim the others in the text.',
}]));

/** A name with its definition. */
function term(key, text = WORDS[key].name) {
  const button = el('button', 'term', text);
  button.type = 'button';
  button.dataset.define = key;
  return button;
}

const termAt = (node) => node.closest?.('[data-define]');
const wordsOf = ({ dataset }) => WORDS[dataset.define] ?? FATE_WORDS[dataset.define];

function definition({ name, words, formula, numbers, more, unit }) {
  const sums = numbers && countersShown() ? [el('br'), el('b', '', numbers(countersShown()))] : [];
  return [el('h4', '', name), el('p', '', words), ...(formula ? [el('p', 'formula', formula, ...sums)] : []),
    ...(more ? [el('p', '', more)] : []), el('p', 'foot', el('span', '', unit), el('span', '', el('kbd', '', 'Esc'), ' to close'))];
}

// Definitions open on hover, focus and tap, in the view and in the figures below it, and can be hovered themselves.

function define({ target }) {
  const owner = termAt(target);
  if (!owner) return;
  clearTimeout(tip._timer);
  openTip(definition(wordsOf(owner)), owner.getBoundingClientRect(), 'defn', owner);
}

function closeDefinitionSoon() {
  clearTimeout(tip._timer);
  tip._timer = setTimeout(() => { if (tip._owner?.dataset.define && document.activeElement !== tip._owner) closeTip(); }, 160);
}

document.addEventListener('pointerover', (event) => { if (event.pointerType !== 'touch') define(event); });
document.addEventListener('focusin', define);
document.addEventListener('click', (event) => { termAt(event.target)?.focus(); define(event); }); // a tap does not focus everywhere
document.addEventListener('focusout', ({ target }) => { if (termAt(target)) closeTip(); });
document.addEventListener('pointerout', ({ target }) => { if (termAt(target)) closeDefinitionSoon(); });
tip.addEventListener('pointerleave', closeDefinitionSoon);
tip.addEventListener('pointerenter', () => clearTimeout(tip._timer));
document.addEventListener('pointerdown', ({ target }) => { if (!tip.hidden && !tip.contains(target) && !tip._owner?.contains(target)) closeTip(); });

/** What the numbers on the card mean: those that this step has. */
function cardWords(step) {
  const has = (field) => step.drafted.some((token) => token[field] != null);
  const keys = ['draft_prob', 'target_prob', 'accept_prob', 'coin'].filter(has);
  const words = [...keys, 'one_step'].flatMap((key, i) => [...(i ? [' · '] : []), term(key)]);
  return el('p', 'terms', 'What is meant: ', ...words);
}

// -- the five headline figures; `out` replaces what differs where the target's own tokens are left out --

// A serving engine's counts are bounds where other requests ran at the same time.
const atLeast = (c, text) => (c.is_bound && text !== NO_VALUE ? `≥ ${text}` : text);
const atMost = (c, count) => (c.is_bound ? `at most ${whole(count)}` : whole(count));
const notTold = (c, name) => (c.steps_are_told === false && c[name] == null ? 'not told' : '');
const splitTimes = (c) => (run.start?.exactness === 'unchecked' ? `${seconds(c.decode_s)}, not told apart` : `draft ${seconds(c.draft_s)} · check ${seconds(c.verify_s)} · other ${seconds(c.other_s)}`);

const FIGURES = [
  { key: 'alpha', value: (c) => atLeast(c, fixed(c.alpha, 3)), needs: ['num_accepted'], counts: (c) => notTold(c, 'num_tested') || `${whole(c.num_accepted)} of ${atMost(c, c.num_tested)} ${inTree(c) ? 'places' : 'tested'} kept` },
  {
    key: 'block_efficiency', choice: 'pass', value: (c) => fixed(c.block_efficiency, 2), needs: ['target_work'], counts: (c) => `${whole(c.num_tokens)} tokens, ${whole(c.target_work)} passes`,
    out: { key: 'accepted_per_pass', value: (c) => fixed(c.accepted_per_pass, 2), counts: (c) => `${whole(c.num_accepted)} kept, ${whole(c.target_work)} passes` },
  },
  { key: 'acceptance_rate', value: (c) => atLeast(c, percent(c.acceptance_rate)), needs: ['num_accepted'], counts: (c) => notTold(c, 'num_drafted') || `${whole(c.num_accepted)} of ${atMost(c, c.num_drafted)} drafted` },
  { key: 'tokens_per_s', value: (c) => fixed(c.decode_tokens_per_s, 1), needs: ['decode_s'], counts: (c) => (c.first_token_s == null ? `after ${seconds(c.decode_s)}` : `first token in ${seconds(c.first_token_s)}`) },
  { key: 'times', needs: ['decode_s'], counts: splitTimes, split: true },
];

const shown = (figure) => (figure.choice && chosen(figure.choice) === 'out' ? { ...figure, ...figure.out } : figure);

function buildFigures() {
  for (const figure of FIGURES) {
    figure.button = term(figure.key);
    figure.big = el('span', figure.split ? 'timesplit' : '');
    figure.small = el('small', '', NO_VALUE);
    if (figure.split) figure.big.append(el('i', 't-draft'), el('i', 't-verify'), el('i', 't-other'));
    else figure.big.textContent = NO_VALUE;
    const box = el('dd', '', figure.big, figure.small);
    if (figure.choice) box.append(chooser(figure.choice));
    $('.kpis').append(el('div', figure.split ? 'wide' : '', el('dt', '', figure.button), box));
  }
}

function nameFigures() {
  for (const figure of FIGURES) {
    const { key } = shown(figure);
    figure.button.dataset.define = key;
    figure.button.textContent = WORDS[key].name;
  }
}

function renderFigures() {
  const counters = countersShown() ?? {};
  for (const figure of FIGURES) {
    const { value, counts } = shown(figure);
    if (figure.split) [counters.draft_s, counters.verify_s, counters.other_s].forEach((part, i) => { figure.big.children[i].style.flexGrow = (part ?? 0) * 1000; }); // shares; under 1 in all they would not fill the bar
    else figure.big.textContent = value(counters);
    figure.small.textContent = figure.needs.every((name) => counters[name] != null) ? counts(counters) : NO_VALUE;
  }
}

// ---- dom: the page's few building blocks -------------------------------------------------------------------
// All text of a run reaches the page through textContent or text nodes, never as markup.

const root = element.querySelector('.sv');
const $ = (selector, from = root) => from.querySelector(selector);
const SVG_NS = 'http://www.w3.org/2000/svg';
const NO_VALUE = '–';
const NARROW_PX = 560;

// One letter a fate, as in the style sheet. `own` are the words that the target wrote itself.
const FATES = {
  accepted: { key: 'a', means: 'The draft guessed it and the target kept it.' },
  corrected: { key: 'c', own: true, means: 'The target’s own word where it refused the draft’s.' },
  bonus: { key: 'b', own: true, means: 'One word more from the target: its whole draft was kept.' },
  rejected: { key: 'r', means: 'The draft guessed it, the target tested and refused it.' },
  discarded: { key: 'd', means: 'Drafted, but neither kept nor refused.' },
  target: { key: 't', means: 'Nothing was drafted here: the target wrote it alone.' },
};

const LEFT_OPEN = 'The target’s own word. The order of the server’s list leaves open whether a draft was refused here.';
const UNTOLD = 'The target’s own word. The server does not report whether a draft was refused here.';

/** An element with a class and children; strings become text nodes. */
function el(tag, className = '', ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG_NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function picture(width, height, label, className = '') {
  return svg('svg', {
    class: `fig ${className}`, width, height, viewBox: `0 0 ${width} ${height}`,
    ...(label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': 'true' }),
  });
}

/** The mark of a fate: square, cross, hollow square, triangle, plus, dot. */
function mark(key) {
  const node = svg('svg', { class: `mk ${key}`, 'aria-hidden': 'true' });
  node.append(svg('use', { href: `#sv-m-${key}` }));
  return node;
}

// Formatting only: every number comes from the server.
const fixed = (value, digits) => (value == null ? NO_VALUE : value.toFixed(value < 1000 ? digits : 0));
const percent = (value) => (value == null ? NO_VALUE : `${value > 0 && value < 0.01 ? (value * 100).toFixed(1) : Math.round(value * 100)} %`); // never "0 %" of something
const whole = (value) => (value == null ? NO_VALUE : String(Number.isInteger(value) ? value : value.toFixed(1)));
const milliseconds = (value) => (value == null ? NO_VALUE : `${(value * 1000).toFixed(value < 0.01 && value > 0 ? 1 : 0)}\u00a0ms`);
const seconds = (value) => (value > 0 && value < 0.01 ? milliseconds(value) : value == null ? NO_VALUE : `${value.toFixed(value < 10 ? 2 : 1)}\u00a0s`);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;
const quoted = (words) => `“${words}”`;

const reducedMotion = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

/** Runs `work` before the next frame, once, however often it is asked; a hidden tab draws no frames. */
function batched(work) {
  let waiting = false;
  const run = () => { waiting = false; work(); };
  return () => {
    if (waiting) return;
    waiting = true;
    if (document.hidden) setTimeout(run, 0); else requestAnimationFrame(run);
  };
}

/** Runs `work` at once, then not again before `ms` have passed; what was asked for meanwhile is done at the end. */
function atMostEvery(ms, work) {
  let resting = false;
  let asked = false;
  const rest = () => { resting = asked; if (asked) { asked = false; work(); setTimeout(rest, ms); } };
  return () => {
    if (resting) { asked = true; return; }
    resting = true;
    work();
    setTimeout(rest, ms);
  };
}

/** localStorage can be forbidden; a lost preference is no error. */
const remembered = {
  get(key) { try { return localStorage.getItem(`specviz.${key}`); } catch { return null; } },
  set(key, value) { try { localStorage.setItem(`specviz.${key}`, value); } catch { /* not kept */ } },
};

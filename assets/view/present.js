// ---- present: ?present=1, for a lecture. One thing at a time in large type, moved by a presenter's remote ----------
// The number in the address is the slide, so a reload stays where it was. Gradio's tabs stay on Watch and are not seen.

const SLIDES = [
  { name: 'prompt', title: 'The prompt' },
  { name: 'text', title: 'The text, and what became of each token', enter: replayText },
  { name: 'step', title: 'One step: draft', panel: 'inspect', phase: 0 },
  { name: 'step', title: 'One step: verify', panel: 'inspect', phase: 1 },
  { name: 'step', title: 'One step: commit', panel: 'inspect', phase: COMMIT },
  { name: 'glance', title: 'The whole run, step by step' },
  { name: 'charts', title: 'The run over time' },
  { name: 'result', title: 'The result' },
];
const SLIDE_SIZE = { width: 800, height: 450 }; // what a slide is laid out for, and enlarged from
const htmlNode = document.documentElement;
let slide = 0; // counted from 1; 0 while nobody presents

const presentBar = el('nav', 'present-bar');
presentBar.setAttribute('aria-label', 'Slides');
const barButton = (text, act) => {
  const button = el('button', '', text);
  button.type = 'button';
  button.addEventListener('click', act);
  return button;
};
const slideName = el('p', 'slide-name');
const slideBack = barButton('Back', () => toSlide(slide - 1));
const slideNext = barButton('Next', () => toSlide(slide + 1));
const slideRun = barButton('Run', () => { document.querySelector('#run').click(); toSlide(2, { play: false }); });
presentBar.append(barButton('Leave', leaveSlides), slideName, slideRun, slideBack, slideNext);
const howLine = el('p', 'howline');
$('.promptline').after(howLine);

function toSlide(number, { play = true } = {}) {
  if (number < 1 || number > SLIDES.length) return;
  const { name, title, panel = 'watch', phase, enter } = SLIDES[number - 1];
  slide = number;
  htmlNode.classList.add('present');
  htmlNode.dataset.slide = name;
  if (!presentBar.isConnected) document.body.append(presentBar);
  fitSlide();
  slideName.textContent = `${number} / ${SLIDES.length} · ${title}`;
  slideRun.hidden = !document.querySelector('#run'); // a saved page has none
  slideBack.disabled = number === 1;
  slideNext.disabled = number === SLIDES.length;
  keepInAddress('present', number);
  if (run.start) howLine.textContent = [run.start.pair, run.start.method, `γ ${run.start.gamma}`].filter(Boolean).join(' · ');
  if (panel === 'inspect') {
    const step = selected || worthALook();
    if (panelInView !== panel) showPanel(panel);
    if (step) { haltReplay(); select(step, { byVisitor: false }); seekReplay(step, phase); }
  } else {
    if (panelInView !== panel) showPanel(panel);
    if (run.entries?.length) showWhole();
    if (enter && play) enter();
  }
  scrollTo(0, 0);
  speak(slideName.textContent, true);
}

function leaveSlides() {
  slide = 0;
  htmlNode.classList.remove('present');
  delete htmlNode.dataset.slide;
  presentBar.remove();
  keepInAddress('present', '');
  showPanel('watch');
  if (run.entries?.length) showWhole();
}

/** The text is written again, at the run's own speed. */
function replayText() {
  if (reducedMotion() || !canReplay()) return;
  rewindReplay();
  startReplay();
}

function fitSlide() {
  htmlNode.style.setProperty('--sv-present', Math.max(1, Math.min(innerWidth / SLIDE_SIZE.width, innerHeight / SLIDE_SIZE.height)).toFixed(2));
}

const SLIDE_KEYS = { ArrowRight: 1, PageDown: 1, ' ': 1, ArrowLeft: -1, PageUp: -1 };

/** Before any other listener: on a slide these keys turn it, wherever the focus is, except in a field. */
addEventListener('keydown', (event) => {
  if (!slide || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.('input, textarea, select')) return;
  if (event.key === ' ' && event.target.closest?.('button, summary, a')) return; // the browser presses it
  if (event.key === 'Escape' && tip.hidden) leaveSlides();
  else if (event.key === 'Home') toSlide(1);
  else if (event.key === 'End') toSlide(SLIDES.length);
  else if (event.key in SLIDE_KEYS) toSlide(slide + (event.shiftKey ? -1 : SLIDE_KEYS[event.key]));
  else return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);

addEventListener('resize', () => { if (slide) fitSlide(); });

/** From the address, at the start. */
function presentFromAddress() {
  const asked = Number(new URLSearchParams(location.search).get('present'));
  if (!Number.isInteger(asked) || asked < 1) return;
  wantedTab = null;
  toSlide(Math.min(asked, SLIDES.length), { play: false });
}

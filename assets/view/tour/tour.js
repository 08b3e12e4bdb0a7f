// ---- tour: stops on recorded runs, each with a guess before its answer -------------------------------------------
// Texts and numbers come with the `tour` message (specviz/ui/tour/stops.py); this file only draws them.

const tour = { stops: [], place: 0, guesses: {} };
const tourBox = $('.tour');

function takeTour({ stops, glossary, problem }) {
  if (tour.stops.length) return; // opened before
  tour.stops = stops;
  $('.notour', tourBox).textContent = problem;
  $('.notour', tourBox).hidden = !problem;
  $('.glossary dl', tourBox).replaceChildren(...glossary.flatMap(glossaryEntry));
  if (!stops.length) return;
  tour.guesses = rememberedGuesses();
  const last = Number(new URLSearchParams(location.search).get('stop') ?? remembered.get('tour.stop')) || 1;
  $('.stops ol', tourBox).replaceChildren(...stops.map((stop, place) => stopLink(stop, place)));
  $('.stop', tourBox).hidden = false;
  goToStop(Math.min(Math.max(last, 1), stops.length) - 1);
}

function rememberedGuesses() {
  try { return JSON.parse(remembered.get('tour.guesses')) ?? {}; } catch { return {}; }
}

function glossaryEntry({ term, words, tab }) {
  const text = el('dd', '', words);
  if (tab && tab !== 'tour' && document.querySelector(`#tab-${CSS.escape(tab)}-button`)) {
    const link = el('button', 'quiet', 'See it');
    link.type = 'button';
    link.setAttribute('aria-label', `See it: ${term}`);
    link.addEventListener('click', () => openTab(tab));
    text.append(' ', link);
  }
  return [el('dt', '', term), text];
}

function stopLink(stop, place) {
  const button = el('button', '', el('span', 'vh', `Stop ${place + 1}: ${stop.title}`));
  button.type = 'button';
  button.title = stop.title;
  button.addEventListener('click', () => goToStop(place, { focus: true }));
  return el('li', '', button);
}

function goToStop(place, { focus = false } = {}) {
  tour.place = place;
  remembered.set('tour.stop', place + 1);
  if (panelInView === 'tour') keepInAddress('stop', place + 1);
  drawStop();
  if (!focus) return;
  const head = $('.stop h2', tourBox);
  head.focus({ preventScroll: true });
  head.scrollIntoView({ block: 'nearest', behavior: 'instant' });
}

function drawStop() {
  const { stops, place } = tour;
  const stop = stops[place];
  $('.stops span', tourBox).textContent = `Stop ${place + 1} of ${stops.length}`;
  [...$('.stops ol', tourBox).children].forEach((item, i) => {
    item.className = i === place ? 'on' : i in tour.guesses ? 'done' : '';
    item.firstChild.toggleAttribute('aria-current', i === place);
  });
  $('.stop h2', tourBox).textContent = stop.title;
  $('.before', tourBox).replaceChildren(...stop.before.map(drawBlock));
  $('.predict h3', tourBox).textContent = `Before you look: ${lowerFirst(stop.question)}`;
  $('.opts', tourBox).setAttribute('aria-label', stop.question);
  $('.opts', tourBox).replaceChildren(...stop.options.map((text, i) => optionButton(stop, text, i)));
  const answered = place in tour.guesses;
  $('.reveal', tourBox).hidden = !answered;
  $('.reveal', tourBox).replaceChildren(...(answered ? stop.after.map(drawBlock) : []));
  $('.see', tourBox).replaceChildren(...(answered ? seeLink(stop.see) : []));
  const back = stops[place - 1];
  const next = stops[place + 1];
  $('.back', tourBox).hidden = !back;
  $('.back', tourBox).textContent = back ? `Back: ${back.short}` : '';
  $('.next', tourBox).textContent = next ? `Next: ${next.short}` : 'Try it yourself';
}

const lowerFirst = (text) => text.charAt(0).toLowerCase() + text.slice(1);

function optionButton(stop, text, number) {
  const guess = tour.guesses[tour.place];
  const answered = guess !== undefined;
  const isRight = number === stop.answer;
  const button = el('button', answered && isRight ? 'right' : answered && number === guess ? 'mine' : '', text);
  button.type = 'button';
  button.setAttribute('aria-pressed', String(number === guess));
  if (answered && isRight) button.append(el('small', '', number === guess ? 'your guess, and right' : 'this is it'));
  else if (number === guess) button.append(el('small', '', 'your guess'));
  button.addEventListener('click', () => {
    tour.guesses[tour.place] = number;
    remembered.set('tour.guesses', JSON.stringify(tour.guesses));
    drawStop();
    $('.opts', tourBox).children[number].focus();
    speak(`${isRight ? 'Right' : 'It is'}: ${stop.options[stop.answer]}`, true);
  });
  return button;
}

/** A way on to where the page shows this on the whole run. */
function seeLink({ tab, trace, step }) {
  if (!tab) return [];
  const names = { inspect: 'Look into this step', methods: 'See what the method saw', watch: 'Watch this run', lab: 'Measure it in the Lab', race: 'Let them race' };
  const url = new URL(location.href);
  for (const name of ['step', 'stop', 'trace', 'tab']) url.searchParams.delete(name);
  if (trace) url.searchParams.set('trace', trace);
  if (step) url.searchParams.set('step', step);
  if (tab !== 'watch') url.searchParams.set('tab', tab);
  const link = el('a', '', names[tab] ?? 'See it');
  link.href = url.href;
  if (!trace) link.addEventListener('click', (event) => { event.preventDefault(); openTab(tab); });
  return [link];
}

// -- blocks --

function drawBlock(block) {
  if (block.p !== undefined) return el('p', '', block.p);
  const kind = Object.keys(BLOCKS).find((name) => block[name] !== undefined);
  const figure = el('figure', kind, BLOCKS[kind](block[kind]));
  if (block.caption) figure.append(el('figcaption', '', block.caption));
  return figure;
}

const BLOCKS = {
  words: (words) => el('p', 'strip line', ...words.map(({ text, kind }) => {
    if (!kind) return el('span', 'later', text);
    const token = el(kind === 'r' ? 's' : 'span', `tk ${kind}`, text.trimStart() || '␣');
    const fate = Object.entries(FATES).find(([, { key }]) => key === kind)?.[0];
    token.title = fate ?? 'only guessed';
    return el('span', '', text.startsWith(' ') ? ' ' : '', token, el('span', 'vh', ` (${token.title}) `));
  })),
  bars: (bars) => {
    const longest = Math.max(...bars.map(({ value }) => value));
    return el('ul', 'bars', ...bars.map(({ name, value, text, kind }) => {
      const bar = el('i', `bar ${kind}`);
      bar.style.width = `${(100 * value) / longest}%`;
      return el('li', '', el('span', '', name), el('span', 'track', bar, el('b', '', text)));
    }));
  },
  cache: ({ before, checked, after }) => {
    const shown = 4; // cells of what was there; the rest is a number
    const row = (name, count, extra, cut) => {
      const cells = el('span', 'cells', ...Array.from({ length: shown }, () => el('i')), ...Array.from({ length: extra }, () => el('i', 'new')), ...Array.from({ length: cut }, () => el('i', 'cut')));
      cells.setAttribute('aria-hidden', 'true');
      return el('li', '', el('span', '', name), el('b', '', String(count)), cells);
    };
    return el('ul', 'entries', row('before', before, 0, 0), row('checked', checked, checked - before, 0), row('after', after, after - before, checked - after));
  },
  coins: ({ kept, coin }) => {
    const grid = el('div', 'coins', ...Array.from({ length: 100 }, (_, i) => {
      const cell = mark(i < kept ? 'a' : 'r');
      if (i === coin) cell.classList.add('fell');
      return cell;
    }));
    grid.setAttribute('role', 'img');
    grid.setAttribute('aria-label', `${kept} of a hundred coins keep the word; the one that fell is number ${coin + 1}`);
    return grid;
  },
  runs: (runs) => el('ul', 'runs', ...runs.map(({ title, text, trace }) => el('li', '', seeRun(title, trace), el('span', '', text)))),
};

function seeRun(title, trace) {
  const [link] = seeLink({ tab: 'watch', trace });
  link.textContent = title;
  return link;
}

$('.newhere button').addEventListener('click', () => openTab('tour'));
$('.leave', tourBox).addEventListener('click', () => openTab('watch'));
$('.back', tourBox).addEventListener('click', () => goToStop(tour.place - 1, { focus: true }));
$('.next', tourBox).addEventListener('click', () => (tour.stops[tour.place + 1] ? goToStop(tour.place + 1, { focus: true }) : openTab('watch')));

addPanel('tour', () => {});

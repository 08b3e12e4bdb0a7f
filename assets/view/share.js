// ---- share: figures as files, and the page as a slide ---------------------------------------------------------------
// A saved figure carries its colours, its letters, its ground and where its numbers come from, so that it stands alone.

const SHEET = { pad: 16, head: 54, line: 17, scale: 2, mostPx: 16000 };
const PAINT = ['fill', 'fill-opacity', 'opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linecap', 'stroke-linejoin',
  'font-family', 'font-size', 'font-weight', 'font-variant-numeric', 'text-anchor'];
const colour = (name) => getComputedStyle(root).getPropertyValue(`--sv-${name}`).trim();

/** A copy of a drawing that needs no style sheet. */
function painted(drawing) {
  const copy = drawing.cloneNode(true);
  const shownNodes = [drawing, ...drawing.querySelectorAll('*')];
  const copies = [copy, ...copy.querySelectorAll('*')];
  shownNodes.forEach((node, i) => {
    const style = getComputedStyle(node);
    if (style.display === 'none' || node.classList.contains('frame')) return copies[i].remove();
    for (const name of PAINT) copies[i].setAttribute(name, style.getPropertyValue(name));
    copies[i].removeAttribute('class');
    copies[i].removeAttribute('style');
  });
  return copy;
}

function words(x, y, text, size, ink, weight = 400) {
  return svg('text', { x, y, fill: colour(ink), 'font-family': colour('sans'), 'font-size': size, 'font-weight': weight }, text);
}

/** Where the numbers come from, in lines that fit under a figure. */
function provenance(width) {
  const { start, mode } = run;
  const { processor, threads } = start.machine;
  const how = mode === 'recorded' ? 'recorded run' : 'measured run';
  const facts = ['specviz', how, start.pair, start.method, start.dtype, processor, threads && counted(threads, 'thread')].filter(Boolean);
  pen.font = `12px ${colour('sans')}`;
  return facts.reduce((lines, fact) => {
    const longer = lines.length ? `${lines.at(-1)} · ${fact}` : fact;
    return lines.length && pen.measureText(longer).width <= width ? [...lines.slice(0, -1), longer] : [...lines, fact];
  }, []);
}

/** A drawing on a sheet with its title, a line of explanation and its origin. */
function sheet({ title, caption, drawing, width, height }) {
  const { pad, head, line } = SHEET;
  const origin = provenance(width);
  const bottom = head + Math.ceil(height) + pad;
  const size = { width: Math.ceil(width) + 2 * pad, height: bottom + origin.length * line + pad };
  const out = svg('svg', { xmlns: SVG_NS, ...size, viewBox: `0 0 ${size.width} ${size.height}` });
  const place = svg('g', { transform: `translate(${pad} ${head})` });
  place.append(drawing);
  out.append(svg('title', {}, title), svg('rect', { width: size.width, height: size.height, fill: colour('bg') }),
    words(pad, pad + 10, title, 15, 'ink', 700), words(pad, pad + 28, caption, 12, 'ink-3'),
    place, ...origin.map((text, i) => words(pad, bottom + (i + 1) * line, text, 12, 'ink-3')));
  return out;
}

/** The page's two letter shapes as part of the file: a picture may load nothing from elsewhere. */
let lettering;
function letterShapes() {
  lettering ??= Promise.all([...document.styleSheets].flatMap((styles) => {
    try { return [...styles.cssRules].map((rule) => ({ rule, base: styles.href ?? location.href })); } catch { return []; }
  }).filter(({ rule }) => rule instanceof CSSFontFaceRule && /IBM Plex Sans/.test(rule.style.getPropertyValue('font-family')))
    .map(async ({ rule, base }) => {
      const [, source] = rule.style.getPropertyValue('src').match(/url\("?([^")]+)"?\)/) ?? [];
      const bytes = new Uint8Array(await (await fetch(new URL(source, base))).arrayBuffer());
      const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
      return `@font-face{font-family:"IBM Plex Sans";font-weight:${rule.style.getPropertyValue('font-weight')};src:url(data:font/woff2;base64,${text})}`;
    })).then((faces) => faces.join(''), () => ''); // without them the reader's own sans-serif is used
  return lettering;
}

const NO_XML = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu; // a trace may say anything, an SVG may not

async function save(page, name, format) {
  page.prepend(svg('style', {}, await letterShapes()));
  const text = new XMLSerializer().serializeToString(page).replace(NO_XML, '\uFFFD');
  const file = new Blob([text], { type: 'image/svg+xml' });
  download(format === 'svg' ? file : await rendered(file, page), `specviz-${name}.${format}`);
}

/** The file as a picture of points, twice as fine as the screen's where that is not too large. */
async function rendered(file, page) {
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const [width, height] = ['width', 'height'].map((name) => Number(page.getAttribute(name)));
    const scale = Math.min(SHEET.scale, SHEET.mostPx / Math.max(width, height));
    const canvas = Object.assign(document.createElement('canvas'), { width: width * scale, height: height * scale });
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => { canvas.toBlob(done, 'image/png'); });
  } finally { URL.revokeObjectURL(url); }
}

function download(file, name) {
  const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// -- what can be saved --

const FIGURE_FILES = {
  text: () => ({ title: 'What was drafted, what was kept', caption: stripKey(), ...drawnStrip() }),
  map: () => ({ title: 'The run at a glance', caption: 'one column a step · kept above the line, refused and untested below', drawing: painted(map.svg), width: map.width, height: map.height }),
  ...Object.fromEntries(CHARTS.map((chart) => [chart.name, () => {
    const drawing = chart.box.firstElementChild;
    const { title, caption } = look(chart);
    return { title, caption, drawing: painted(drawing), width: drawing.width.baseVal.value, height: drawing.height.baseVal.value };
  }])),
};

function stripKey() {
  const parts = ['line: the draft guessed it', 'filled: the target wrote it'];
  if (['marks', 'all'].includes(root.dataset.depth)) parts.push('struck: refused', root.dataset.depth === 'marks' ? '□: drafted, never tested' : 'grey: drafted, never tested');
  return parts.join(' · ');
}

/** A figure after a run, which is Plotly's own drawing; its colours are readable on both grounds. */
async function plotFigure(box) {
  const plot = $('.js-plotly-plot', box);
  const { width, height } = plot.getBoundingClientRect();
  const url = await window.Plotly.toImage(plot, { format: 'svg', width, height });
  const text = decodeURIComponent(url.slice(url.indexOf(',') + 1));
  const drawing = document.importNode(new DOMParser().parseFromString(text, 'image/svg+xml').documentElement, true);
  return { title: $('h3', box).textContent, caption: $('.caption', box).textContent, drawing, width, height };
}

function saveButtons(name, title) {
  const group = el('span', 'saves');
  for (const format of ['svg', 'png']) {
    const button = el('button', 'quiet', format.toUpperCase());
    button.type = 'button';
    button.dataset.save = `${name}:${format}`;
    button.setAttribute('aria-label', `Save as ${format.toUpperCase()}: ${title}`);
    group.append(button);
  }
  return group;
}

function buildSaves() {
  $('.map h3').after(saveButtons('map', 'The run at a glance'));
  $('.shead .depth').before(saveButtons('text', 'What was drafted, what was kept'));
  for (const chart of CHARTS) $('h3', chart.box.parentElement).after(saveButtons(chart.name, look(chart).title));
}

document.addEventListener('click', ({ target }) => {
  const [name, format] = target.dataset?.save?.split(':') ?? [];
  if (name === 'plot') plotFigure(target.closest('.figure')).then((figure) => save(sheet(figure), figure.title.toLowerCase().replaceAll(' ', '-'), format));
  else if (FIGURE_FILES[name] && run.entries?.length) save(sheet(FIGURE_FILES[name]()), name, format);
});

// -- opening: what cannot be a trace is refused before it is sent; a file may also be dropped on the view --

const MAX_UPLOAD_MB = 9;
const fileField = () => document.querySelector('.extras input[type=file]');

document.addEventListener('change', (event) => {
  if (event.target !== fileField()) return;
  const [file] = event.target.files;
  if (!file || file.size <= MAX_UPLOAD_MB * 1e6) return;
  event.stopImmediatePropagation();
  event.target.value = '';
  showProblem({ error: `The file has ${(file.size / 1e6).toFixed(1)} MB. At most ${MAX_UPLOAD_MB} MB can be opened here.` });
}, true);

root.addEventListener('dragover', (event) => { if (event.dataTransfer.types.includes('Files')) event.preventDefault(); });
root.addEventListener('drop', (event) => {
  const field = fileField();
  if (!field || !event.dataTransfer.files.length) return;
  event.preventDefault();
  const one = new DataTransfer();
  one.items.add(event.dataTransfer.files[0]);
  field.files = one.files;
  field.dispatchEvent(new Event('change', { bubbles: true }));
});

// -- links: a run of the gallery stays in the address; as a slide it is the run alone --

const asked = new URLSearchParams(location.search);
let openingName; // of the run that the page opens on without being asked

function rememberSource({ source, mode }) {
  const name = mode === 'recorded' ? source?.gallery ?? '' : '';
  openingName ??= name;
  if (root.classList.contains('waiting')) return; // the server has not read the address yet
  keepInAddress('trace', name === openingName ? '' : name);
  $('.slide').hidden = !name;
}

/** What a link asks for takes a moment to come; until then the run that the page opens on is not shown. */
function awaitLinked(delta) {
  if (delta.error || delta.source?.gallery === asked.get('trace')) root.classList.remove('waiting');
}

$('.slide').addEventListener('click', ({ target }) => {
  const url = new URL(location.pathname, location.href);
  url.searchParams.set('embed', '1');
  url.searchParams.set('trace', run.source.gallery);
  const say = (text) => { target.textContent = text; setTimeout(() => { target.textContent = 'Link for slides'; }, 4000); };
  if (!navigator.clipboard) return say(url.search);
  navigator.clipboard.writeText(url.href).then(() => say('Copied'), () => say(url.search));
});

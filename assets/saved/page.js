// ---- saved page: what Gradio does for the view on the served page, for runs that lie in the file itself ------------
// `runView(element, props, watch)` is the view's own script. Texts of a run stay in JSON until the view sets them.

const saved = JSON.parse(document.querySelector('#saved-runs').textContent);
const props = { value: null };
let takeValue = () => {};

let themeAsked = new URLSearchParams(location.search).get('__theme'); // else the system's
const prefersDark = matchMedia('(prefers-color-scheme: dark)');
const followTheme = () => document.body.classList.toggle('dark', themeAsked ? themeAsked === 'dark' : prefersDark.matches);
prefersDark.addEventListener('change', followTheme);
followTheme();

/** Hands the view one delta, as the server would. */
function deliver(delta) {
  props.value = JSON.stringify(delta);
  takeValue();
}

const tabs = [...document.querySelectorAll('.masthead [role=tab]')];

function chooseTab(tab) {
  for (const other of tabs) {
    other.setAttribute('aria-selected', String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
  }
  document.querySelector('#view').setAttribute('aria-labelledby', tab.id);
  dispatchEvent(new CustomEvent('specviz:tab', { detail: tab.dataset.tab }));
}

for (const tab of tabs) {
  tab.addEventListener('click', () => chooseTab(tab));
  tab.addEventListener('keydown', (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
    chooseTab(next);
    next.focus();
    event.preventDefault();
    event.stopPropagation(); // arrows move steps elsewhere
  });
}

const which = document.querySelector('.which select');
for (const { title } of saved.runs) which.append(new Option(title));
which.parentElement.hidden = saved.runs.length < 2;
which.addEventListener('change', () => deliver(saved.runs[which.selectedIndex].delta));

runView(document.querySelector('#view'), props, (name, take) => { takeValue = take; });
chooseTab(tabs[0]);
if (saved.race) deliver(saved.race);
if (saved.runs.length) deliver(saved.runs[0].delta);

// -- in a notebook the page around this one says its theme, and what a run that goes on has done. A front end may leave
// messages out, so each one brings the last few deltas again --

let nextSeq = 0;

addEventListener('message', ({ source, data }) => {
  if (source !== parent || typeof data?.specviz !== 'object') return;
  const { theme, deltas } = data.specviz ?? {};
  if (theme) { themeAsked = theme; followTheme(); }
  for (const delta of deltas ?? []) {
    if (delta.seq !== nextSeq) continue;
    nextSeq += 1;
    deliver(delta);
  }
});

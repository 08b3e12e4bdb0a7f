// ---- panels: each tab of the page shows one of them, and only that one is drawn ----------------------------------
// Gradio's tabs say which: `specviz:tab` on the window, with the tab's id. A tab without a panel is Gradio's own.

const panels = new Map(); // id -> { box, draw }
let panelInView = 'watch';

/** `draw` runs when the panel comes into view, and once a frame while the run or the selection changes. */
function addPanel(id, draw) {
  panels.set(id, { box: $(`.panel[data-panel=${id}]`), draw });
}

function drawPanel() {
  panels.get(panelInView)?.draw();
}

function showPanel(id) {
  panelInView = id;
  for (const [other, { box }] of panels) box.hidden = other !== id;
  document.body.dataset.tab = id; // Gradio's own parts that belong to one tab follow it by CSS
  closeTip();
  drawPanel();
}

/** As if the visitor had pressed the tab. */
function openTab(id) {
  document.querySelector(`#tab-${id}-button`)?.click();
}

const TABS_WITHIN_MS = 20000;
const tabOfAddress = new URLSearchParams(location.search).get('tab');
let wantedTab = /^[a-z]+$/.test(tabOfAddress ?? '') ? tabOfAddress : null; // until the visitor chooses

for (const act of ['pointerdown', 'keydown']) addEventListener(act, ({ isTrusted }) => { if (isTrusted) wantedTab = null; }, true);

/** Presses the tab until it is in view: Gradio mounts its tabs late, listens later, and last of all selects its own. */
function openPanelOfAddress() {
  if (performance.now() > TABS_WITHIN_MS) wantedTab = null;
  if (!wantedTab || panelInView === wantedTab) return;
  openTab(wantedTab);
  setTimeout(openPanelOfAddress, 100);
}

addEventListener('specviz:tab', ({ detail }) => {
  if (detail === panelInView || slide) return; // slides choose their panels themselves
  showPanel(detail);
  if (wantedTab && detail !== wantedTab) setTimeout(openPanelOfAddress, 100);
  else keepInAddress('tab', detail === 'watch' ? null : detail);
});

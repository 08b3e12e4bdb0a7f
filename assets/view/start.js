// ---- start: builds what stands still, then takes what is there ---------------------------------------------------

const measured = new ResizeObserver(batched(() => {
  map.width = Math.floor(mapBox.clientWidth);
  map.svg = null;
  for (const chart of CHARTS) chart.width = Math.floor(chart.box.clientWidth);
  measureLens();
  if (!run.start) return;
  if (panelInView === 'watch') unsettled = run.entries.flatMap((entry) => notesOf(entry));
  render();
}));

buildFigures();
buildLegend();
buildCharts();
buildSaves();
showChoices();
clearStrip();
clearLedger();
renderCard(null);
renderFigures();
renderLegend();
showDepth(DEPTHS.includes(remembered.get('depth')) ? remembered.get('depth') : 'marks');
for (const box of [mapBox, lens, ...CHARTS.map((chart) => chart.box)]) measured.observe(box);
addEventListener('beforeprint', () => extendLedger(run.entries ?? []));
openPanelOfAddress();
watch('value', () => receive(props.value));
addEventListener('specviz:figures', batched(showChoices));
root.classList.toggle('waiting', asked.has('trace'));
setTimeout(() => root.classList.remove('waiting'), 5000); // the server may not answer
document.documentElement.classList.toggle('embed', asked.get('embed') === '1');
presentFromAddress();
if (props.value) receive(props.value);

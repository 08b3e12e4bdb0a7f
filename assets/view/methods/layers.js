// ---- methods/layers: early exit, which layers ran for which token, as area -------------------------------------------

const LAYERS_PX = 168;

function drawLayers(entry, { exit_layer: exit, num_layers: all }) {
  const { step } = entry;
  const { drafted } = step;
  if (!drafted.length || !isCount(exit) || !isCount(all) || exit < 1 || exit >= all) return null;
  const px = (layers) => `${Math.round((LAYERS_PX * layers) / all)}px`;
  const columns = drafted.length + 1;
  const grid = el('div', 'layers');
  grid.style.gridTemplate = `auto ${px(exit)} ${px(all - exit)} auto auto / auto repeat(${columns}, minmax(44px, 92px))`;
  const put = (row, column, className, ...children) => {
    const node = el('span', className, ...children);
    node.style.gridArea = `${row} / ${column}`;
    grid.append(node);
    return node;
  };
  put(1, 1, 'side', 'reads');
  put(2, 1, 'side top', 'layer 1');
  put(2, 1, 'side bottom ink', String(exit));
  put(3, 1, 'side bottom', String(all));
  put(4, 1, 'side', 'guess');
  const inputs = [...tokensBefore(entry).slice(-1), ...drafted];
  inputs.forEach((token, i) => {
    put(1, i + 2, 'reads', word(token));
    put(2, i + 2, i < drafted.length ? 'block draft' : 'block check');
    if (i < drafted.length) put(4, i + 2, 'says', fatedWord(drafted[i], drafted[i].fate));
  });
  put(3, 2, 'block check').style.gridColumnEnd = `span ${columns}`;
  const own = ownToken(step);
  if (own) {
    put(5, 1, 'side', 'target');
    put(5, Math.min(step.num_accepted, drafted.length) + 2, 'says', fatedWord(own, own.origin));
  }
  const passes = Math.abs(step.target_work - 1) < 0.005 ? 'one full pass' : `${fixed(step.target_work, 2)} full passes`;
  return {
    finding: `The first ${exit} of ${all} layers guessed ${countInWords(drafted.length, 'token')}: ${fatesInWords(drafted)}.`,
    box: el('div', '', grid, drawingKey(
      ['draft', `${layerSpan(1, exit)}, one token at a time: the draft.`],
      ['check', `${layerSpan(exit + 1, all)}, all ${inWords(columns)} at once: the check, which goes on where the draft stopped. Only the last guess runs through the first layers here.`],
    ), el('p', 'note', `Together as much work as ${passes} of the target.`)),
  };
}

const layerSpan = (first, last) => (first === last ? `Layer ${first}` : `Layers ${first} to ${last}`);

methodDrawings.layers = drawLayers;

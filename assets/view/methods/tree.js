// ---- methods/tree: candidates as a tree, drawn for heads and for any draft that tells no more of itself -----------

const MOST_NODES = 80; // a trace can hold any number; a run has 64 at most

function drawTree(entry, data) {
  const { step } = entry;
  if (!step.drafted.length) return null;
  const layout = treeLayout(step);
  const grid = el('div', 'tree');
  const last = tokensBefore(entry).at(-1);
  const root = treeNode(0, { first: 1, count: layout.numRows }, 'root', last ? word(last) : el('small', '', 'start'));
  grid.append(root);
  for (const node of layout.nodes) {
    const { token, isOwn } = node;
    const { key } = FATES[isOwn ? token.origin : token.fate];
    node.box = treeNode(node.depth, node, key, fatedWord(token, isOwn ? token.origin : token.fate));
    if (token.draft_prob != null) node.box.append(el('small', '', fixed(token.draft_prob, 2)));
    grid.append(node.box);
  }
  for (let depth = 1; depth <= layout.depth; depth++) grid.append(treeNode(depth, { first: layout.numRows + 1, count: 1 }, 'level', levelName(depth, data)));
  const wires = svg('svg', { class: 'wires', 'aria-hidden': 'true' });
  grid.append(wires);
  return {
    finding: treeFinding(step, layout),
    box: el('div', 'treebox', grid, el('p', 'note', treeNote(step, data))),
    settle: () => wireTree(grid, wires, root, layout.nodes),
  };
}

/** Rows for the leaves, depth for the columns. The target's own word hangs from the last kept one. */
function treeLayout(step) {
  const drawn = step.drafted.slice(0, MOST_NODES);
  const nodes = drawn.map((token, i) => ({ token, parent: token.parent < i ? Math.max(-1, token.parent) : -1 }));
  const own = ownToken(step);
  if (own) nodes.push({ token: own, isOwn: true, parent: drawn.findLastIndex((token) => token.fate === 'accepted') });
  const children = (parent) => nodes.filter((node) => node.parent === parent);
  let numRows = 0;
  let deepest = 0;
  const place = (node, depth) => {
    node.depth = depth;
    node.first = numRows + 1;
    deepest = Math.max(deepest, depth);
    const below = children(nodes.indexOf(node));
    for (const child of below) place(child, depth + 1);
    if (!below.length) numRows += 1;
    node.count = numRows - node.first + 1;
  };
  for (const node of children(-1)) place(node, 1);
  return { nodes, numRows, depth: deepest, isChain: drawn.every((token, i) => token.parent === i - 1) };
}

function treeNode(depth, { first, count }, className, ...children) {
  const node = el('span', `node ${className}`, ...children);
  node.style.gridArea = `${first} / ${depth + 1} / span ${count} / auto`;
  return node;
}

const levelName = (depth, { num_heads: heads }) => (isCount(heads) ? (depth <= heads ? `head ${depth}` : 'target') : `+${depth}`);

function treeFinding(step, { isChain }) {
  const { drafted } = step;
  const kept = step.emitted.filter((token) => token.origin === 'accepted');
  if (isChain) return `${asSentence(countInWords(drafted.length, 'guess', 'guesses'))} in a row: ${fatesInWords(drafted)}.`;
  const path = kept.length ? `the path ${phrase(kept)} was kept` : 'no path was kept';
  return `${asSentence(inWords(drafted.length))} candidates in a tree, all checked in one pass: ${path}.`;
}

function treeNote(step, { trained, taps }) {
  const parts = [];
  if (trained === false) parts.push('These heads are untrained: each repeats what the target just said.');
  if (Array.isArray(taps) && taps.length && taps.every(isCount)) parts.push(`The head reads the target’s states after layers ${taps.join(', ')} and the last.`);
  if (step.drafted.some((token) => token.draft_prob != null)) parts.push('Numbers: the chance that the draft gave.');
  if (step.drafted.length > MOST_NODES) parts.push(`The first ${MOST_NODES} of ${step.drafted.length} candidates are drawn.`);
  return parts.join(' ');
}

/** Curves from parents to children, at the places where the page has put them. */
function wireTree(grid, wires, root, nodes) {
  const frame = grid.getBoundingClientRect();
  const place = (box) => {
    const rect = box.getBoundingClientRect();
    return { left: rect.left - frame.left - 4, right: rect.right - frame.left + 5, y: (rect.top + rect.bottom) / 2 - frame.top };
  };
  wires.setAttribute('width', grid.scrollWidth);
  wires.setAttribute('height', grid.scrollHeight);
  const order = ['d', 'r', 'c', 'b', 't', 'a']; // the kept path lies on top
  const lines = nodes.map((node) => {
    const from = place(node.parent < 0 ? root : nodes[node.parent].box);
    const to = place(node.box);
    const middle = (from.right + to.left) / 2;
    const { key } = FATES[node.isOwn ? node.token.origin : node.token.fate];
    return { key, path: svg('path', { class: `wire ${key}`, d: `M${from.right} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.left} ${to.y}` }) };
  });
  wires.replaceChildren(...lines.sort((a, b) => order.indexOf(a.key) - order.indexOf(b.key)).map(({ path }) => path));
}

methodDrawings.tree = drawTree;

// ---- methods/model: a draft model or a quantized copy, where its q differs from the target's p --------------------------

function drawModel(entry) {
  const { step } = entry;
  const { drafted } = step;
  if (!drafted.length) return null;
  const list = el('ol', 'rows model');
  for (const token of drafted) {
    const { draft_prob: q, target_prob: p, overlap } = token;
    list.append(el('li', '', fatedWord(token, token.fate), q == null ? el('span') : agreement(q, p),
      el('span', 'count', `draft ${fixed(q, 2)} · target ${p == null ? 'not asked' : fixed(p, 2)}`),
      el('span', 'shared', overlap == null ? '' : `shared ${fixed(overlap, 2)}`)));
  }
  const parts = [`The draft wrote ${phrase(drafted)}: ${fatesInWords(drafted)}.`];
  const told = drafted.filter((token) => token.draft_prob != null && token.target_prob != null);
  const apart = (token) => Math.abs(token.draft_prob - token.target_prob);
  const furthest = told.sort((a, b) => apart(b) - apart(a))[0];
  if (furthest && apart(furthest) >= 0.1) parts.push(`The two differ most at ${phrase([furthest])}: ${fixed(furthest.draft_prob, 2)} against ${fixed(furthest.target_prob, 2)}.`);
  else if (furthest) parts.push('The two hardly differ here.');
  return {
    finding: parts.join(' '),
    box: el('div', 'rowsbox', list, ownLine(step), drawingKey(['both', 'both gave it'], ['more', 'only the draft did'], ['less', 'only the target did'], ['alone', 'the target was not asked']),
      el('p', 'note', modelNote(drafted))),
  };
}

/** One bar from 0 to 1: what both gave, then what only one of them did. */
function agreement(q, p) {
  const bar = el('span', 'bar');
  const part = (className, share) => { const node = el('i', className); node.style.width = `${100 * Math.max(0, Math.min(1, share))}%`; if (share > 0) bar.append(node); };
  if (p == null) part('alone', q);
  else { part('both', Math.min(q, p)); part('more', q - p); part('less', p - q); }
  return bar;
}

function modelNote(drafted) {
  const { draft, target } = run.start;
  const parts = [];
  const size = (info) => [info.name, info.quantization || info.dtype, info.num_bytes && `${Math.round(info.num_bytes / 1e6)} MB`].filter(Boolean).join(', ');
  if (draft) parts.push(`The draft is ${size(draft)}; the target ${size(target)}.`);
  if (isGreedy()) parts.push('Chances at temperature 1, for information: this greedy run asked only for the target’s first choice.');
  if (drafted.some((token) => token.overlap != null)) parts.push('Shared: how far the two agree over the whole vocabulary.');
  return parts.join(' ');
}

methodDrawings.model = drawModel;

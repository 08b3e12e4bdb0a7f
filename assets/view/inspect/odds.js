// ---- odds: what both models thought at one place: bars of p against q, what they share, what is left at a refusal ----
// Teal is min(p, q), red is q over p, amber is p over q: the three areas are the three fates.

const ODDS_PX = { row: 30, bar: 20, head: 20, numbers: 122, gap: 48, rest: 0.24, mostLabel: 132, charPx: 8, mark: 34 };
const MOST_ROWS = 9;

/** One row a token that either model finds likely, the tried and the written one among them; likeliest first. */
function oddsRows(drafted, own, isLast) {
  const rows = new Map();
  const row = (token) => {
    if (!rows.has(token.token_id)) rows.set(token.token_id, { token });
    return rows.get(token.token_id);
  };
  const tried = row(drafted);
  for (const top of drafted.draft_top ?? []) row(top).q = top.prob;
  for (const top of drafted.target_top ?? []) row(top).p = top.prob;
  for (const top of drafted.residual_top ?? []) row(top).rest = top.prob;
  tried.tried = true;
  tried.p ??= drafted.target_prob;
  if (drafted.draft_top) tried.q ??= drafted.draft_prob; // the one value of a greedy draft makes no second bar
  if (isLast && own) {
    const written = row(own);
    written.written = true;
    if (drafted.residual_top) written.rest ??= own.target_prob; else written.p ??= own.target_prob;
  }
  const size = ({ p, q }) => Math.max(p ?? 0, q ?? 0);
  const sorted = [...rows.values()].sort((a, b) => size(b) - size(a));
  const must = (one) => one.tried || one.written;
  const spare = MOST_ROWS - sorted.filter(must).length;
  let taken = 0;
  return sorted.filter((one) => must(one) || taken++ < spare);
}

/** A value as it is known: itself, "under" the least of a full list it is not in, or nothing. */
function oddsNumber(value, top) {
  if (value != null) return fixed(value, 2);
  if (!top) return '';
  return top.length < 5 ? '0' : `< ${fixed(Math.max(0.01, top.at(-1).prob), 2)}`;
}

/** Labels that would read the same show whether a space leads them. */
function oddsLabels(rows) {
  const plain = rows.map(({ token }) => spoken(token));
  return rows.map(({ token }, i) => {
    const twin = plain.some((other, j) => j !== i && other === plain[i]);
    const text = twin && /^ \S/.test(token.text) ? `␣${plain[i]}` : plain[i];
    return text.length > 13 ? `${text.slice(0, 12)}…` : text;
  });
}

/** The picture for one tried token. `isLast`: the target then wrote its own token from what was left. */
function drawOdds(width, drafted, own, isLast) {
  const rows = oddsRows(drafted, own, isLast);
  const labels = oddsLabels(rows);
  const known = { q: Boolean(drafted.draft_top), two: Boolean(drafted.draft_top) || isChosen(drafted) };
  const hasRest = Boolean(drafted.residual_top) && width >= NARROW_PX;
  const left = Math.min(ODDS_PX.mostLabel, Math.max(...labels.map((label) => label.length)) * ODDS_PX.charPx + ODDS_PX.mark);
  const rest = hasRest ? width * ODDS_PX.rest : 0;
  const numbersEnd = width - (hasRest ? rest + ODDS_PX.gap : 0);
  const room = numbersEnd - ODDS_PX.numbers - left;
  const most = Math.max(...rows.map(({ p, q }) => Math.max(p ?? 0, q ?? 0)), 0.01);
  const x = (value) => left + (room * value) / most;
  const height = ODDS_PX.head + rows.length * ODDS_PX.row;
  const columns = { q: numbersEnd - 60, p: numbersEnd - 4 };
  const restLeft = width - rest;
  const node = picture(width, height, oddsLabel(drafted, rows));
  if (known.q) node.append(svg('text', { x: columns.q, y: 12, class: 'end t13' }, 'q'));
  node.append(svg('text', { x: columns.p, y: 12, class: 'end t13' }, 'p'));
  if (hasRest) node.append(svg('text', { x: restLeft, y: 12, class: 't13' }, known.q ? 'p − q, stretched to fill 1' : 'p without it, stretched to fill 1'));

  rows.forEach((row, i) => {
    const y = ODDS_PX.head + i * ODDS_PX.row + 5;
    const { p, q } = row;
    if (row.tried) node.append(svg('rect', { x: 0, y: y - 4, width, height: ODDS_PX.bar + 8, rx: 4, class: 'T-s' }));
    const key = row.tried ? FATES[drafted.fate].key : row.written ? FATES[own.origin].key : '';
    if (key) node.append(svg('use', { href: `#sv-m-${key}`, x: 4, y: y + 5, width: 10, height: 10, class: `mk ${key}` }));
    node.append(svg('text', { x: left - 10, y: y + 15, class: 'end t15 ink' }, labels[i]));
    oddsBar(node, y, row, x, known.two);
    if (known.q) node.append(svg('text', { x: columns.q, y: y + 15, class: `end t13 ${row.tried ? 'bold ink' : ''}` }, oddsNumber(q, drafted.draft_top)));
    node.append(svg('text', { x: columns.p, y: y + 15, class: `end t13 ${row.tried || row.written ? 'bold ink' : 'ink'}` }, oddsNumber(p, drafted.target_top)));
    if (hasRest) restBar(node, y, row, restLeft, rest, own, isLast);
  });
  node.append(svg('line', { class: 'axis', x1: left, x2: left, y1: ODDS_PX.head, y2: height }));
  return node;
}

function oddsBar(node, y, { p = 0, q, tried }, x, isTwo) {
  const bar = (from, to, className) => { if (to > from) node.append(svg('rect', { x: x(from), y, width: Math.max(1, x(to) - x(from)), height: ODDS_PX.bar, class: className })); };
  if (!isTwo) return bar(0, p, tried ? 'P-tried' : 'P-only'); // nothing is known of q: the target alone
  const both = q == null ? (tried ? p : 0) : Math.min(p, q); // a chosen token is certain to its draft
  bar(0, both, 'B-both');
  bar(both, q ?? 0, 'B-eager');
  bar(both, p, 'B-more');
  if (both > 0) node.append(svg('line', { x1: x(both), x2: x(both), y1: y, y2: y + ODDS_PX.bar, class: 'S-a', 'stroke-width': 1.5 }));
}

/** What was left at a refusal, scaled to 1, and where the draw from it fell. */
function restBar(node, y, row, left, width, own, isLast) {
  const room = width - 48;
  if (row.rest == null) {
    node.append(svg('text', { x: left, y: y + 15, class: 't13' }, NO_VALUE));
    return;
  }
  const isDrawn = isLast && row.written;
  const length = room * row.rest;
  node.append(
    svg('rect', { x: left, y, width: Math.max(1, length), height: ODDS_PX.bar, class: 'B-more' }),
    svg('text', { x: left + length + 8, y: y + 15, class: `t13 ink ${isDrawn ? 'bold' : ''}` }, fixed(row.rest, 2)),
  );
  if (isDrawn) node.append(svg('path', { d: `M${left + length / 2} ${y + 1}l-5 -8h10z`, class: 'inkF' }));
}

function oddsLabel(drafted, rows) {
  const said = rows.slice(0, 5).map(({ token, p, q }) => `${spoken(token)}${q == null ? '' : ` q ${fixed(q, 2)}`}${p == null ? '' : ` p ${fixed(p, 2)}`}`);
  return `Likeliest tokens where ${spoken(drafted)} was drafted: ${said.join('; ')}${drafted.overlap == null ? '' : `. Shared: ${fixed(drafted.overlap, 2)}`}`;
}

/** The areas that this picture has, by the class of their swatch. */
function oddsKey(drafted) {
  if (!drafted.draft_top && !isChosen(drafted)) return [];
  const names = isChosen(drafted)
    ? [['both', 'the guess: kept with its p'], ['more', 'all the rest of p: what is written at a refusal is drawn from here']]
    : [['both', 'both: min(p, q), kept'], ['eager', 'draft too eager: q over p, refused'], ['more', 'target wants more: p over q, a correction is drawn from here']];
  return names.map(([name, text]) => el('span', '', el('i', `swatch ${name}`), text));
}

const chanceWords = (chance) => el('b', '', chance > 0 && chance < 0.005 ? 'under 0.01' : fixed(chance, 2));

/** Luck or match: what the two models share here, and what the coin made of it. */
function oddsWords(drafted, step) {
  const name = el('bdi', '', quotedToken(drafted));
  const before = triedBefore(drafted, step);
  const rest = before ? ` ${capital(inWords(before))} guess${before > 1 ? 'es' : ''} for this place had been refused before, so p is what was left of it.` : '';
  if (isOfBlock(drafted)) {
    return prose('As a block: after ', name, ' the draft is worth ', drafted.prefix_prob, ' (p', el('sub', '', 'i'), '), and its coin had to fall under ', chanceWords(drafted.block_prob), ' (h', el('sub', '', 'i'), '). It fell at ', drafted.coin,
      `. ${blockVerdict(drafted)} Token by token its chance would have been `, chanceWords(drafted.accept_prob), '.');
  }
  if (drafted.fate === 'discarded') return prose(name, ` was never tested, so nothing is known of the target here${whyUntested(drafted, step)}.`);
  if (isChosen(drafted)) return prose(name, ' was chosen, not drawn, so it has no q. It is kept with the chance that the target gives it, ', chanceWords(drafted.accept_prob), ', and its coin fell at ', drafted.coin, `.${rest}`);
  if (hasCoin(drafted) && drafted.overlap != null) {
    const share = Math.round(drafted.overlap * 100);
    return prose('The two models share ', drafted.overlap, ` of their probability here: of 100 tokens drafted at this place, ${share} would be kept. `, name,
      ' alone had a chance of ', chanceWords(drafted.accept_prob), ', and its coin fell at ', drafted.coin, `.${rest}`);
  }
  if (hasCoin(drafted)) return prose(name, ' had a chance of ', chanceWords(drafted.accept_prob), ', and its coin fell at ', drafted.coin, `.${rest}`);
  if (isLikelyRule()) return prose('No coin is thrown: what the target finds likely enough is kept.', ...(drafted.target_prob == null ? [] : [' It gave ', name, ' a chance of ', chanceWords(drafted.target_prob), '.']));
  if (isGreedy()) return prose('A greedy run throws no coin: only the target’s first choice is kept, however close the others come.', ...(drafted.target_prob == null ? [] : [' At temperature 1 ', name, ' would have a chance of ', chanceWords(drafted.target_prob), '.']));
  return prose('What the two models thought here is not known.');
}

/** How many guesses for the same place were refused before this one. */
function triedBefore(drafted, step) {
  const at = step.drafted.indexOf(drafted);
  return step.drafted.filter((other, i) => i < at && other.parent === drafted.parent && other.fate === 'rejected').length;
}

/** How the correction was found, under the picture. */
function restWords(drafted, own, isLast) {
  if (!drafted.residual_top) return '';
  if (!isLast) return 'What is left of p at this refusal decides about the next guess for the same place.';
  return `The correction is drawn from what is left of ${isOfBlock(drafted) ? 'the block’s worth times p' : 'p'}, stretched to fill 1. The draw fell on ${quotedToken(own)}${own.target_prob == null ? '' : `, which had a chance of ${fixed(own.target_prob, 2)}`}.`;
}

// ---- methods/table: the n-gram table, which words were looked up and how often the corpus went on so --------------

function drawTable(entry, { match_lens: lengths, counts, totals }) {
  const { drafted } = entry.step;
  const known = [lengths, counts, totals].every((list) => Array.isArray(list) && list.length >= drafted.length && list.every(isCount));
  if (!drafted.length || !known) return null;
  const text = [...tokensBefore(entry), ...drafted];
  const end = text.length - drafted.length;
  const looked = (i) => text.slice(Math.max(0, end + i - lengths[i]), end + i);
  const times = (i) => `${counts[i]} of ${counted(totals[i], 'time')}`;
  const list = el('ol', 'rows table');
  drafted.forEach((token, i) => list.append(el('li', '',
    el('span', 'context', el('small', '', 'after '), plainWords(looked(i))), fatedWord(token, token.fate),
    shareBar(counts[i], totals[i]), el('span', 'count', times(i)),
  )));
  return {
    finding: `After ${phrase(looked(0))} the corpus went on with ${phrase([drafted[0]])} ${times(0)}. ${asSentence(countInWords(drafted.length, 'token'))} looked up: ${fatesInWords(drafted)}.`,
    box: el('div', 'rowsbox', list, ownLine(entry.step)),
  };
}

function shareBar(part, total) {
  const fill = el('i');
  fill.style.width = `${total > 0 ? Math.min(100, (100 * part) / total) : 0}%`;
  return el('span', 'bar', fill);
}

/** The target's own word, under a list of drafted ones. */
function ownLine(step) {
  const own = ownToken(step);
  if (!own) return '';
  const why = { corrected: 'written by the target where it refused', bonus: 'one more from the target', target: 'written by the target alone' };
  return el('p', 'ownline', fatedWord(own, own.origin), el('small', '', why[own.origin]));
}

methodDrawings.table = drawTable;

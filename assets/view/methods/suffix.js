// ---- methods/suffix: suffix decoding, the phrases that were found, their counts, and why the draft ends ------------

const SOURCE_NAMES = { run: 'this run', answers: 'answers read beforehand' };
const MOST_PHRASES = 8;

function drawSuffix(entry, data) {
  const { match_len: match, source, counts, totals } = data;
  const { drafted } = entry.step;
  const known = [counts, totals].every((list) => Array.isArray(list) && list.length >= drafted.length && list.every(isCount));
  if (!drafted.length || !known || !isCount(match) || !Object.hasOwn(SOURCE_NAMES, source)) return null;
  const before = tokensBefore(entry);
  const times = (i) => `${counts[i]} of ${counted(totals[i], 'time')}`;
  const isTree = drafted.some((token, i) => token.parent !== i - 1);
  const after = before.slice(Math.max(0, before.length - match));
  const said = after.length ? `After ${phrase(after)}` : 'Here';
  const where = SOURCE_NAMES[source];
  const size = countInWords(drafted.length, isTree ? 'candidate' : 'token');
  const tree = isTree ? drawTree(entry, {}) : null;
  return {
    finding: `${said} ${where} went on with ${phrase([drafted[0]])} ${times(0)}. ${asSentence(size)} drafted: ${fatesInWords(drafted)}.`,
    box: el('div', 'rowsbox', ...suffixPhrases(before, data), el('h4', '', isTree ? 'The likeliest of all of them' : 'The draft, and how often it went on so'),
      tree ? tree.box : suffixRows(drafted, counts, totals, times), ...(tree ? [] : [ownLine(entry.step)]), el('p', 'note', suffixEnd(data))),
    settle: tree?.settle,
  };
}

function suffixRows(drafted, counts, totals, times) {
  const list = el('ol', 'rows table');
  drafted.forEach((token, i) => list.append(el('li', '',
    el('span', 'context', el('small', '', i ? 'then' : 'first')), fatedWord(token, token.fate), shareBar(counts[i], totals[i]), el('span', 'count', times(i)),
  )));
  return list;
}

/** The phrases that stand elsewhere, and how many accepted tokens each promised. */
function suffixPhrases(before, { asked }) {
  const isPhrase = (row) => Array.isArray(row) && row.length === 5 && Object.hasOwn(SOURCE_NAMES, row[0]) && row.slice(1, 4).every(isCount) && Number.isFinite(row[4]) && row[4] >= 0;
  const rows = (Array.isArray(asked) ? asked : []).filter(isPhrase).slice(0, MOST_PHRASES);
  if (!rows.length) return [];
  const most = Math.max(...rows.map((row) => row[4]));
  const list = el('ol', 'rows table');
  for (const [source, length, places, , expected] of rows) {
    const words = el('span', 'context', plainWords(before.slice(Math.max(0, before.length - length)), false));
    const found = el('span', 'count', `${SOURCE_NAMES[source]}, ${counted(places, 'time')}`);
    const name = `${fixed(expected, 1)} expected`;
    list.append(el('li', '', words, found, shareBar(expected, most), el('span', 'count', expected === most ? el('strong', '', name) : name)));
  }
  return [el('h4', '', 'The last words, found again: tokens that are expected to be kept'), list];
}

/** Why the draft ends where it does. */
function suffixEnd({ stop, doubted, least, match_len: match }) {
  const reasons = {
    full: 'It ends there because no more was asked for.',
    factor: `It ends there because ${countInWords(match, 'matching token')} earn no longer draft.`,
    unsure: 'It ends behind a token that was in doubt itself.',
    end: 'It ends there because nothing is known to follow.',
  };
  const isDoubt = stop === 'doubt' && Array.isArray(doubted) && typeof doubted[0] === 'string' && isCount(doubted[1]) && isCount(doubted[2]) && [doubted[3], least].every(Number.isFinite);
  if (isDoubt) return `It ends there because ${phrase([{ text: doubted[0] }])} (${doubted[1]} of ${counted(doubted[2], 'time')}) would be kept with odds of ${fixed(doubted[3], 2)}, under the ${fixed(least, 2)} that a token needs.`;
  return typeof stop === 'string' && Object.hasOwn(reasons, stop) ? reasons[stop] : '';
}

methodDrawings.suffix = drawSuffix;

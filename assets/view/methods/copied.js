// ---- methods/copied: prompt lookup, the copied span over the draft ------------------------------------------------

const COPIED_LEAD = 3; // words shown in front of the match
const COPIED_MAP = { height: 62, line: 40, thick: 6 };

function drawCopied(entry, { source_start: start, match_len: match }) {
  const { drafted } = entry.step;
  const before = tokensBefore(entry);
  if (!drafted.length || !isCount(start) || !isCount(match) || match > start || start + drafted.length > before.length) return null;
  const inPrompt = start < run.start.prompt_texts.length;
  const from = inPrompt ? 'the prompt' : 'its own answer';
  return {
    finding: `${asSentence(countInWords(drafted.length, 'token'))} copied from ${from}: ${fatesInWords(drafted)}.`,
    box: el('div', 'copied', copiedLanes(entry.step, before, start, match, inPrompt)),
    head: (width) => copiedMap(width, before.length, start, drafted),
  };
}

/** Source over draft, place by place: "=" where the search matched, an arrow where a token was copied. */
function copiedLanes(step, before, start, match, inPrompt) {
  const end = before.length;
  const grid = el('div', 'lanes');
  const own = ownToken(step);
  const heads = ['', inPrompt ? 'earlier, in the prompt' : 'earlier, in the answer', '', 'now', own ? 'the target' : ''];
  heads.forEach((head, lane) => { if (head) grid.append(laneCell(lane + 1, 1, 'head', head)); });
  const lead = (to) => before.slice(Math.max(0, to - COPIED_LEAD), to);
  let along = 2;
  if (start > match) {
    const span = (to) => plainWords(lead(to), to > COPIED_LEAD);
    grid.append(laneCell(2, along, 'lead', span(start - match)), laneCell(4, along, 'lead', span(end - match)));
    along += 1;
  }
  grid.append(spanning(laneCell(1, along, 'caption', match === 1 ? 'same' : `the same ${inWords(match)}`), match));
  for (let i = 0; i < match; i++, along++) {
    grid.append(
      laneCell(2, along, 'match', word(before[start - match + i])), laneCell(3, along, 'sign', '='),
      laneCell(4, along, 'match', word(before[end - match + i])),
    );
  }
  grid.append(spanning(laneCell(1, along, 'caption ink', 'copied from here'), step.drafted.length));
  step.drafted.forEach((token, i) => {
    grid.append(
      laneCell(2, along + i, 'source', word(before[start + i])), laneCell(3, along + i, 'sign arrow'),
      laneCell(4, along + i, 'draft', fatedWord(token, token.fate)),
    );
  });
  if (own) grid.append(laneCell(5, along + step.num_accepted, 'own', fatedWord(own, own.origin)));
  return grid;
}

function spanning(cell, count) {
  cell.style.setProperty('--span', count);
  return cell;
}

/** The whole text as one line, and an arc from the copied span to the draft at its end. */
function copiedMap(width, length, start, drafted) {
  const { height, line, thick } = COPIED_MAP;
  const total = length + drafted.length;
  const x = (place) => 1 + ((width - 2) * place) / total;
  const numPrompt = Math.min(run.start.prompt_texts.length, length);
  const node = picture(width, height, '', 'copymap');
  const span = (from, to, className) => svg('rect', { x: x(from), y: line, width: Math.max(2, x(to) - x(from) - 1), height: thick, class: className });
  const [a, b] = [x(start + drafted.length / 2), x(length + drafted.length / 2)];
  const rise = Math.min(line - 6, 8 + (b - a) / 5);
  node.append(
    span(0, numPrompt, 'T-2'), span(numPrompt, length, 'written'), span(start, start + drafted.length, 'inkF'),
    svg('path', { class: 'ln thin arc', d: `M${a} ${line - 3}C${a} ${line - rise - 8} ${b} ${line - rise - 8} ${b} ${line - 4}` }),
    svg('path', { class: 'inkF', d: `M${b - 3.5} ${line - 8}h7l-3.5 6z` }),
    svg('text', { x: 1, y: height - 2 }, 'prompt'),
    svg('text', { x: width - 1, y: height - 2, class: 'end' }, 'draft'),
  );
  drafted.forEach((token, i) => node.append(span(length + i, length + i + 1, `L-${FATES[token.fate].key}`)));
  const answerAt = x(numPrompt);
  if (length > numPrompt && answerAt > 60 && width - answerAt > 130) node.append(svg('text', { x: answerAt, y: height - 2 }, 'answer so far'));
  return node;
}

methodDrawings.copied = drawCopied;

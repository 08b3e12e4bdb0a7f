// ---- methods/alone: steps without a draft, plain decoding, and a server that does not tell -----------------------------

const PASSES_SHOWN = 7;

/** Plain decoding: a pass for every token. */
function drawPlain(entry) {
  const shown = run.entries.slice(Math.max(0, entry.number - PASSES_SHOWN), entry.number);
  const list = el('ol', 'passes');
  for (const { step } of shown) list.append(el('li', step === entry.step ? 'here' : '', el('i', '', `pass ${step.index}`), ...step.emitted.map((token) => fatedWord(token, token.origin))));
  return { finding: `One pass of the whole target, one token: ${phrase(entry.step.emitted)}.`, box: list };
}

/** A method that had nothing to offer in this step, and why. */
function drawAlone(entry) {
  const before = tokensBefore(entry);
  const line = el('p', 'aloneline', plainWords(before.slice(-8), before.length > 8), ' ', ...entry.step.emitted.map((token) => fatedWord(token, token.origin)));
  return { finding: 'No draft in this step: the target wrote one token alone.', box: el('div', '', line, el('p', 'note', whyAlone(entry, before.length))) };
}

function whyAlone({ step }, numBefore) {
  const most = run.start.settings?.max_new_tokens;
  if (step.note?.text) return `Why: ${step.note.text}.`;
  if (step.gamma > 0) return 'The drafter had nothing to offer.';
  if (most && numBefore - run.start.prompt_texts.length >= most - 1) return 'Why: only one token was left to write, and the target writes that itself.';
  return 'Why: no draft was asked for in this step.';
}

/** A serving engine: what it sends, and what it keeps to itself. */
function drawServed(entry) {
  const { step } = entry;
  const told = ['the tokens, as they come', 'when each of them came'];
  const untold = ['what was drafted and refused', 'the probabilities of draft and target', 'what its drafter looked at'];
  const list = (title, items) => el('div', '', el('h4', '', title), el('ul', 'plainlist', ...items.map((item) => el('li', '', item))));
  const came = step.emitted.length > 1 ? `${asSentence(inWords(step.emitted.length))} tokens came at once, so all but the last were drafted` : 'One token came: drafted or not, the server does not tell';
  return {
    finding: `${came}.`,
    box: el('div', '', el('p', 'aloneline', ...step.emitted.map((token) => fatedWord(token, token.origin))),
      el('div', 'told', list('A server reports', told), list('It does not report', untold))),
  };
}

// ---- stepwords: what happened in one step, in sentences --------------------------------------------------------------

const NUMBER_WORDS = ['no', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten', 'eleven', 'twelve'];
const inWords = (number) => NUMBER_WORDS[number] ?? String(number);
const countedInWords = (number, noun) => `${inWords(number)} ${noun}${number === 1 ? '' : 's'}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const were = (number) => (number === 1 ? 'was' : 'were');
const MOST_QUOTED = 3;

const quotedToken = (token) => quoted(spoken(token));

/** “a”, “b” and “c”; more than a few as their number. */
function quotedList(tokens, noun = 'token') {
  if (tokens.length > MOST_QUOTED) return countedInWords(tokens.length, noun);
  const words = tokens.map(quotedToken);
  return words.length > 1 ? `${words.slice(0, -1).join(', ')} and ${words.at(-1)}` : words[0];
}

const withFate = (step, fate) => step.drafted.filter((token) => token.fate === fate);
const ownToken = (step) => (step.emitted.at(-1)?.origin === 'accepted' ? null : step.emitted.at(-1));
const isTold = (step) => step.num_drafted != null; // a serving engine may keep it to itself

/** Depth of each drafted token, 0 for the first place. */
function placesOf(drafted) {
  const places = [];
  drafted.forEach((token, i) => { places[i] = token.parent < 0 ? 0 : places[token.parent] + 1; });
  return places;
}

/** Refused tokens of the place where the walk ended. */
function refusedAtEnd(step) {
  const places = placesOf(step.drafted);
  return step.drafted.filter((token, i) => token.fate === 'rejected' && places[i] === step.num_accepted);
}

/** The step in one sentence, as far as the phase has got. */
function stepHeadline(step, phase) {
  const { drafted } = step;
  if (phase < COMMIT && drafted.length) {
    if (phase === 0) return `The draft offers ${quotedList(drafted)}.`;
    return `The target checks ${drafted.length === 1 ? 'it' : drafted.length === 2 ? 'both' : `all ${inWords(drafted.length)}`} in one go.`;
  }
  if (phase < COMMIT) return phase === 0 ? 'The draft has nothing to offer.' : 'The target takes a plain step.';
  const own = ownToken(step);
  const kept = withFate(step, 'accepted');
  if (!drafted.length && (!isTold(step) || step.num_drafted)) return `The server wrote ${quotedList(step.emitted)}.`;
  if (!drafted.length) return `Nothing was drafted. The target wrote ${quotedToken(own ?? step.emitted[0])}.`;
  if (!own) return `${keptWords(kept, step)}, and the answer ended there.`;
  if (own.origin === 'bonus') return `${keptWords(kept, step)}, and the target added ${quotedToken(own)}.`;
  const refused = refusedAtEnd(step);
  const them = refused.length === 1 ? 'it' : refused.length === 2 ? 'both' : 'them all';
  return `The draft guessed ${quotedList(refused, 'other token')}. The target refused ${them} and wrote ${quotedToken(own)}.`;
}

/** In a tree the kept tokens are one path of many. */
function keptWords(kept, step) {
  if (kept.length === 1) return `The guess ${quotedToken(kept[0])} was kept`;
  if (isTreeStep(step.drafted)) return `A path of ${inWords(kept.length)} guesses was kept to its end`;
  return `${kept.length === 2 ? 'Both' : `All ${inWords(kept.length)}`} guesses were kept`;
}

const isTreeStep = (drafted) => drafted.some((token, i) => token.parent !== i - 1);

/** What was offered and what became of it. */
function stepGist(step) {
  const out = `${capital(countedInWords(step.emitted.length, 'token'))} came out of ${workWords(step.target_work)}.`;
  const head = `Step ${step.index}`;
  if (!isTold(step)) return `${head} was done by a server, which tells what it kept and not what it refused. ${out}`;
  if (!step.drafted.length && step.num_drafted) return `${head}: the server drafted ${countedInWords(step.num_drafted, 'token')} and kept ${inWords(step.num_accepted)}. ${out}`;
  if (!step.drafted.length) return `${head} had no draft. ${out}`;
  const shape = isTreeStep(step.drafted) ? ` as a tree, ${countedInWords(Math.max(...placesOf(step.drafted)) + 1, 'place')} deep` : '';
  const fates = [['accepted', 'kept'], ['rejected', 'refused'], ['discarded', step.drafted.some(isOfBlock) ? 'behind the refusal' : 'never tested']]
    .map(([fate, said]) => [withFate(step, fate).length, said]).filter(([number]) => number)
    .map(([number, said]) => `${inWords(number)} ${were(number)} ${said}`);
  const said = fates.length === 1 && step.drafted.length > 1 ? fates[0].replace(/^\S+/, 'all') : fates.join(', ');
  const byToken = keptByToken(step);
  const block = byToken == null ? '' : ` They were judged as a block; token by token the same coins would have kept ${byToken === step.num_accepted ? 'as many' : byToken ? inWords(byToken) : 'none'}.`;
  return `${head} offered ${countedInWords(step.drafted.length, 'token')}${shape}. ${capital(said)}.${block} ${out}${againWords(step)}`;
}

/** A recurrent state that has read a refused token is brought back, which costs a second pass. */
function againWords({ num_again: again }) {
  if (!again) return '';
  const kept = again - 1; // the first of them is the last token of the text before
  const fed = kept ? `the last token and the ${kept === 1 ? 'kept one' : `${inWords(kept)} kept ones`} were` : 'the last token was';
  return ` This step was checked twice: the recurrent state was brought back to before the draft, and ${fed} fed again.`;
}

const workWords = (work) => (work === 1 ? 'one pass of the target' : `the work of ${Number.isInteger(work) ? inWords(work) : whole(work)} passes of the target`);

/** The verdict on one drafted token, with its reason. */
function verdictWords(token, step) {
  const kept = token.fate === 'accepted';
  if (isOfBlock(token)) return blockVerdict(token);
  if (token.fate === 'discarded') return `Never tested${whyUntested(token, step)}.`;
  if (hasCoin(token)) {
    const [chance, toss] = [fixed(token.accept_prob, 2), fixed(token.coin, 2)];
    if (token.accept_prob >= 1) return 'Kept. The target likes it at least as much as the draft did.';
    if (!kept && token.accept_prob < 0.005) return 'Refused. The target gives it next to no chance.';
    if (chance === toss) return `${kept ? 'Kept' : 'Refused'}. The coin fell just ${kept ? 'under' : 'over'} ${chance}.`;
    return kept ? `Kept. The coin ${toss} is under ${chance}.` : `Refused. The coin ${toss} is over ${chance}.`;
  }
  if (isGreedy()) return kept ? 'Kept. The target’s first choice too.' : greedyRefusal(token, step);
  if (isLikelyRule()) return kept ? 'Kept. The target finds it likely enough.' : `Refused. Not likely enough${isTreeStep(step.drafted) ? ', or on a shorter path' : ''}.`;
  return kept ? 'Kept.' : 'Refused.';
}

function greedyRefusal(token, step) {
  const own = refusedAtEnd(step).includes(token) && ownToken(step);
  return own ? `Refused. The target’s first choice is ${quotedToken(own)}.` : 'Refused. The target’s first choice is another.';
}

/** The refusal before it, or the guess that was kept in its or its ancestor's place. */
function whyUntested(token, step) {
  const parent = step.drafted[token.parent];
  if (parent?.fate === 'discarded') return whyUntested(parent, step);
  if (parent?.fate === 'rejected') return ': it followed a refused token';
  const kept = step.drafted.some((other) => other.parent === token.parent && other.fate === 'accepted');
  return kept ? ': another guess was kept first' : '';
}

/** How a token came about that the target wrote itself, or that a server told of. */
function originWords(token, step) {
  if (token.origin === 'accepted') return 'Kept. The server does not report what else it tested.';
  if (!isTold(step)) return 'The server’s own.';
  if (token.origin === 'target') return 'Nothing was drafted, so the target wrote one token.';
  if (token.origin === 'bonus') return 'One more: the pass that checks a draft also gives the token behind it.';
  if (isGreedy()) return 'Written instead, the target’s first choice.';
  return isLikelyRule() ? 'Written instead, the target’s own.' : 'Written instead, drawn from what was left.';
}

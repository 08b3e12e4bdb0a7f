// ---- detail: coin, tooltip, definitions and the margin card ---------------------------------------------------

const card = $('.card');
const tip = $('.tip');
const TIP_DELAY_MS = 80;

/** What the coin has to fall under: a block's h, else the token's own chance. */
const coinChance = (token) => token.block_prob ?? token.accept_prob;
const isOfBlock = (token) => token.block_prob != null && token.coin != null;
const isUnder = (token) => token.coin < coinChance(token);

/** 0 to 1: teal up to the chance of being kept, a tick there, and the coin as a dot. Dot on teal: under it. */
function coin(token, width) {
  const kept = isOfBlock(token) ? isUnder(token) : token.fate === 'accepted';
  const result = isOfBlock(token) ? (kept ? 'under' : 'over') : kept ? 'kept' : 'refused';
  const label = `${isOfBlock(token) ? 'h' : 'chance'} ${fixed(coinChance(token), 2)}, coin ${fixed(token.coin, 2)}: ${result}`;
  const node = picture(width, 14, label, 'coin');
  const at = (value) => 5 + (width - 10) * value;
  const chance = Math.min(1, coinChance(token));
  node.append(
    svg('rect', { x: 5, y: 4, width: width - 10, height: 6, rx: 3, class: 'track' }),
    svg('rect', { x: 5, y: 4, width: at(chance) - 5, height: 6, rx: 3, class: 'chance' }),
  );
  if (chance < 1) node.append(svg('line', { x1: at(chance), x2: at(chance), y1: 2, y2: 12, class: 'S-a', 'stroke-width': 2 }));
  node.append(svg('circle', { cx: at(token.coin), cy: 7, r: 4.5, class: kept ? 'L-a dot' : 'L-r dot' }));
  return node;
}

const hasCoin = (token) => token.coin != null && token.accept_prob != null;
const isLikelyRule = () => /acceptance$/.test(run.start?.verify ?? ''); // typical acceptance, threshold acceptance
const isGreedy = () => !isLikelyRule() && (run.start?.verify === 'greedy' || !hasTemperature(run.start));
const hasTemperature = (start) => Boolean(start?.settings?.temperature);
/** A guess that was chosen, not drawn, has no q of its own: the rule takes it as certain. */
const isChosen = (token) => hasCoin(token) && !isOfBlock(token) && token.draft_prob === 1 && token.accept_prob === token.target_prob;

/** At a refusal the target's own token is drawn from what is left of p, not from p. */
const isDrawnFromRest = (token) => token.origin === 'corrected' && !isGreedy() && !isLikelyRule();

/** What a test said where no coin was thrown. */
function outcome(token) {
  if (token.fate === 'discarded') return token.target_prob == null ? 'not tested' : 'passed, another branch won';
  if (isGreedy()) return token.fate === 'accepted' ? 'first choice' : 'not first choice';
  if (isLikelyRule()) return token.fate === 'accepted' ? 'likely enough' : 'not likely enough';
  return token.fate === 'accepted' ? 'kept' : 'refused';
}

/** Text with numbers in bold: strings stay, numbers are written with two digits. */
const prose = (...parts) => el('p', '', ...parts.map((part) => (typeof part === 'number' ? el('b', '', fixed(part, 2)) : part)));

/** How sure the two models were, as far as it is known. */
function probabilities(token) {
  const { draft_prob: q, target_prob: p } = token;
  if (isChosen(token)) return ['The draft chose it without a draw, the target gave it ', p];
  if (q != null && p != null) return ['The draft gave it ', q, ', the target ', p];
  if (q != null) return ['The draft gave it a chance of ', q];
  if (p != null) return ['The target gave it a chance of ', p];
  return [];
}

/** p_i, h_i and the coin of a token in a block. */
const blockProse = (token) => ['The draft up to here is worth ', token.prefix_prob, '. Its coin had to fall under ', token.block_prob, ' and fell at ', token.coin, `. ${blockVerdict(token)}`];

/** The longest beginning whose own coin fell under its h is kept. */
function blockVerdict(token) {
  if (token.fate !== 'accepted') return isUnder(token) ? 'The answer ended before it.' : 'Not kept: no coin from here on fell under its h.';
  return isUnder(token) ? 'Kept, with all before it.' : 'Kept all the same: a later coin keeps the whole beginning.';
}

/** Of a step's block, how many tokens the same coins would keep token by token; null where there is no block. */
function keptByToken(step) {
  if (!step.drafted.some(isOfBlock)) return null;
  const end = step.drafted.findIndex((token) => !isOfBlock(token) || token.coin >= token.accept_prob);
  return end < 0 ? step.drafted.length : end;
}

function draftedProse(token) {
  const known = probabilities(token);
  if (isOfBlock(token)) return [coin(token, 240), prose(...known, '.'), prose(...blockProse(token))];
  if (token.fate === 'discarded') return [prose(FATES.discarded.means), ...(known.length ? [prose(...known, '.')] : [])];
  const kept = token.fate === 'accepted';
  if (hasCoin(token)) {
    const chance = [`${known.length ? ': ' : ''}kept with chance `, token.accept_prob, '. The coin fell at ', token.coin];
    return [coin(token, 240), prose(...known, ...chance, kept ? '.' : ': refused.')];
  }
  const why = isGreedy() ? `${kept ? 'The' : 'Not the'} target’s first choice: ${kept ? 'kept' : 'refused'}.` : FATES[token.fate].means;
  return [prose(why), ...(known.length ? [prose(...known, '.')] : [])];
}

/** A serving engine's probabilities are no acceptance probabilities, and are named so. */
const beforeTemperature = () => (run.start?.exactness === 'unchecked' ? ', before temperature' : '');

/** Whether the server listed its drafting steps in the end. */
const isListed = () => Boolean(run.finish?.counts?.drafted_by_step?.length);

function ownProse({ entry, token, refused }) {
  const lines = [];
  if (token.origin === 'corrected' && refused.length) {
    const choice = isGreedy() ? 'The target’s first choice where the draft said ' : 'The target’s own word, drawn after it refused ';
    lines.push(prose(choice, el('bdi', '', refused.map((one) => quoted(spoken(one))).join(', ')), '.'));
  } else lines.push(prose(token.origin === 'target' && entry.step.num_drafted == null ? (isListed() ? LEFT_OPEN : UNTOLD) : FATES[token.origin].means));
  if (token.target_prob != null && isDrawnFromRest(token)) lines.push(prose('It had a chance of ', token.target_prob, ' in what the target had left.'));
  else if (token.target_prob != null) lines.push(prose('The target gave it a chance of ', token.target_prob, `${beforeTemperature()}.`));
  return lines;
}

/** Head, picture, words and place of one token. */
function tokenTip(about) {
  const { entry, token, drafted, siblings } = about;
  const shown = token ?? drafted;
  const fate = token?.origin ?? drafted.fate;
  const head = el('h4', '', word(shown), el('span', '', mark(FATES[fate].key), fate));
  const body = drafted ? draftedProse(drafted) : ownProse(about);
  if (!token && siblings?.length > 1) {
    body.push(prose(siblings[0].fate === 'rejected' ? 'Refused at the same place: ' : 'Drafted and never tested: ',
      el('bdi', '', siblings.slice(0, 12).map((one) => quoted(spoken(one))).join(', ')), siblings.length > 12 ? ' …' : '.'));
  }
  const place = token ? `token ${entry.firstToken + about.place + 1} · step ${entry.step.index}` : `step ${entry.step.index}`;
  return [head, ...body, el('p', 'foot', el('span', '', place), el('span', '', `id ${shown.token_id}`))];
}

/** Opens the one shared tooltip under `rect`, inside the view and, if it can be, inside the window. */
function openTip(content, rect, kind, owner) {
  tip.replaceChildren(...content);
  tip.className = `tip ${kind}`;
  tip.hidden = false;
  tip._owner?.removeAttribute('aria-describedby');
  tip._owner = owner;
  owner.setAttribute('aria-describedby', tip.id);
  const frame = root.getBoundingClientRect();
  const left = Math.max(0, Math.min(rect.left - frame.left - 12, frame.width - tip.offsetWidth));
  const below = rect.bottom - frame.top + 8;
  const above = rect.top - frame.top - tip.offsetHeight - 22;
  const tooLow = rect.bottom + 8 + tip.offsetHeight > innerHeight && rect.top - tip.offsetHeight - 22 > 0;
  tip.style.left = `${left}px`;
  tip.style.top = `${tooLow ? above : below}px`;
}

function closeTip() {
  clearTimeout(tip._timer);
  tip.hidden = true;
  tip._owner?.removeAttribute('aria-describedby');
  tip._owner = null;
}

/** The line box of `node` that is nearest to a point: a word can be broken over two lines. */
function rectAt(node, y) {
  const rects = [...node.getClientRects()];
  return rects.find((rect) => y >= rect.top - 12 && y <= rect.bottom + 12) ?? rects[0];
}

// -- margin card: the selected step, token by token --

function renderCard(entry) {
  if (!entry) {
    card.classList.add('empty');
    card.replaceChildren(el('p', '', 'Choose a word or a column to see how its step went. Arrow keys walk through the steps.'));
    return;
  }
  const { step } = entry;
  card.classList.remove('empty');
  const list = el('ol');
  for (const token of step.drafted) list.append(cardRow(token, token.fate, hasCoin(token) ? coin(token, 84) : el('em', '', outcome(token))));
  for (const token of step.emitted) {
    if (token.origin === 'accepted' && step.drafted.length) continue;
    const how = { corrected: isGreedy() ? 'first choice' : 'drawn instead', bonus: 'one more', target: step.num_drafted == null ? 'target' : 'target alone', accepted: 'kept' };
    list.append(cardRow(token, token.origin, el('em', '', how[token.origin])));
  }
  const drafted = step.num_drafted == null ? (isListed() ? 'drafted: left open' : 'drafted: not told') : step.num_drafted ? `${step.num_accepted} of ${step.num_drafted} kept` : 'nothing drafted';
  const times = run.start?.exactness === 'unchecked' ? `${milliseconds(step.clock.at(-1) - step.clock[0])} after the message before`
    : step.with_prompt ? 'Its pass read the prompt as well, so its time is the prompt’s'
    : `Draft ${milliseconds(step.draft_s)}, check ${milliseconds(step.verify_s)}, other ${milliseconds(step.other_s)}`;
  card.replaceChildren(
    el('h3', '', `Step ${step.index} `, el('small', '', drafted)), list,
    el('p', '', `${counted(step.emitted.length, 'token')}. ${times}.`),
  );
  if (step.note?.text) card.append(el('p', '', step.note.text));
  card.append(cardWords(step));
  const look = el('button', 'quiet look', 'Look into this step');
  look.type = 'button';
  look.addEventListener('click', () => inspect());
  card.append(look);
}

function cardRow(token, fate, picture) {
  const { key, own } = FATES[fate];
  const text = word(token, own ? 'own' : '');
  const row = el('li', `${key} row`, mark(key), key === 'r' ? el('s', '', text) : el('span', '', text), picture);
  const models = [];
  if (token.draft_prob != null) models.push(`draft ${fixed(token.draft_prob, 2)}`);
  if (token.target_prob != null) models.push(`target ${fixed(token.target_prob, 2)}${beforeTemperature()}`);
  if (models.length || hasCoin(token)) row.append(el('small', '', el('span', '', models.join(' · '))));
  row.addEventListener('click', () => inspect({ drafted: token, token }));
  if (hasCoin(token)) row.lastChild.append(el('span', 'roomy', `${isOfBlock(token) ? 'h' : 'chance'} ${fixed(coinChance(token), 2)}`), el('span', '', `coin ${fixed(token.coin, 2)}`));
  return row;
}

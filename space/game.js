/* The game: bet on twenty hidden words of a text, and get a perplexity of your own beside the model's.
   The rounds come from game_rounds.json; what a player bets stays in the player's browser. */
const GAME_MODEL = "demo_model", GAME_KEPT = "perplexity-sliding-game", GAPS = 20, OPTIONS = 6;
const TAP = 5, MOST_TAPS = 3; // each tap makes an option five times as likely
const STUDENT = 2.093, STUDENT_OF_TWO = 2.024; // 97.5 % of Student's t with 19 and with 38 degrees of freedom
const CHANCES = [0.7, 0.35, 1 / OPTIONS, 0.05]; // between the colours of a word
const ROUND_NAMES = ["all the text before it", "five words before it"];
const FOOL = 1; // nats by which a loss must be larger than the other's for a word to have fooled somebody
const asPercent = (share) => (share >= 0.995 ? "99" : share >= 0.01 ? (100 * share).toFixed(0) : "< 1") + " %";
const twoDigits = (value) => value.toFixed(2);

/* --- bets and what they cost, in nats --- */

/* The bet on each option: each tap multiplies its odds. */
function betOf(taps) {
  const weights = taps.map((count) => TAP ** count), sum = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / sum);
}
/* The model's chance of each option, given that one of them came. */
function chancesOf(surprisals) {
  const least = Math.min(...surprisals), weights = surprisals.map((nll) => Math.exp(least - nll)), sum = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / sum);
}
const meanOf = (values) => values.reduce((a, b) => a + b, 0) / values.length;
function errorOf(values) {
  const mean = meanOf(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1) / values.length);
}
/* Mean of the losses of twenty words, and its 95 % interval by Student's t. */
function estimateOf(losses) {
  const mean = meanOf(losses), margin = STUDENT * errorOf(losses);
  return { mean, low: mean - margin, high: mean + margin };
}
/* How much larger the mean of the first is, of losses of other words. */
function differenceOf(first, second) {
  const mean = meanOf(first) - meanOf(second), margin = STUDENT_OF_TWO * Math.hypot(errorOf(first), errorOf(second));
  return { mean, low: mean - margin, high: mean + margin };
}
const isChance = ({ low, high }) => low <= 0 && high >= 0;

/* Everything about a round that was played: for each gap the chances that both gave to the word that came. */
function scoreRound(round, part, bets) {
  const words = round.gaps.map((gap, n) => {
    const you = betOf([...bets[n]].map(Number))[gap.answer], whole = chancesOf(gap.whole)[gap.answer], five = chancesOf(gap.five)[gap.answer];
    return { at: gap.at, word: gap.options[gap.answer], you, model: part ? five : whole, whole };
  });
  const losses = (who) => words.map((word) => -Math.log(word[who]));
  const you = losses("you"), model = losses("model");
  return { words, losses: { you, model, whole: losses("whole") }, you: estimateOf(you), model: estimateOf(model), difference: estimateOf(you.map((loss, n) => loss - model[n])) };
}

/* --- what is kept, in this browser alone --- */

function readKept() {
  try { return JSON.parse(localStorage.getItem(GAME_KEPT)) ?? {}; } catch { return {}; }
}
function writeKept(kept) {
  try { localStorage.setItem(GAME_KEPT, JSON.stringify(kept)); } catch { /* then a reload begins anew */ }
}
const isBet = (bet) => typeof bet === "string" && bet.length === OPTIONS && [...bet].every((tap) => tap >= "0" && tap <= String(MOST_TAPS));
/* The bets of a game, those of each round; anything else that stands there counts as nothing. */
function keptBets(number) {
  const kept = readKept()[number];
  return [0, 1].map((part) => Array.isArray(kept?.[part]) && kept[part].every(isBet) ? kept[part].slice(0, GAPS) : []);
}
function keepBets(number, bets) { writeKept({ ...readKept(), [number]: bets }); }

/* The game that is open, for a reload of this tab. */
function keepOpen(link) {
  try { sessionStorage.setItem(GAME_KEPT, JSON.stringify(link)); } catch { /* then a reload closes it */ }
}
function keptOpen() {
  if (performance.getEntriesByType("navigation")[0]?.type !== "reload") keepOpen(null); // left open by an earlier visit
  try { return JSON.parse(sessionStorage.getItem(GAME_KEPT)); } catch { return null; }
}
addEventListener("hashchange", () => keepOpen(null)); // another link is another visit

/* --- the link: which game, and what to beat --- */

function readGameLink(hash) {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const number = Number(values.get("game")), beat = (values.get("beat") ?? "").split("-").map(Number);
  if (!values.has("game") || !Number.isInteger(number) || number < 1) return null;
  return { number, beat: beat.filter((value) => value >= 1 && value <= TAP ** MOST_TAPS + OPTIONS - 1).slice(0, 2) };
}
function pageAddress() {
  const written = document.querySelector("[data-address]")?.dataset.address ?? "";
  return /^https?:/.test(written) ? written.split(/[?#]/)[0] : location.origin + location.pathname;
}
function gameLink(number, results) {
  const beat = results.map((result) => twoDigits(Math.exp(result.you.mean))).join("-");
  return `${pageAddress()}#game=${number}${beat && `&beat=${beat}`}`;
}

/* --- the dialog --- */

let rounds = null;
async function loadRounds() {
  const answer = await fetch(new URL("game_rounds.json", location.origin + location.pathname.replace(/[^/]*$/, "")));
  if (!answer.ok) throw new Error(`${answer.status}`);
  rounds = await answer.json();
}
const button = (className, text, act) => {
  const made = make("button", `ps-button ${className}`, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
};

function gameDialog() {
  const there = document.getElementById("ps-game");
  if (there) return there;
  const dialog = make("dialog", "ps-view ps-game"), head = make("div", "ps-game-head"), close = button("ps-game-close", "✕", () => dialog.close());
  dialog.id = "ps-game";
  dialog.setAttribute("aria-labelledby", "ps-game-title");
  close.setAttribute("aria-label", "Close the game");
  const title = make("h2", "", "Your own perplexity");
  title.id = "ps-game-title";
  head.append(title, make("span", "ps-game-count"), close);
  dialog.append(head, make("div", "ps-game-body"));
  dialog.addEventListener("close", () => {
    keepOpen(null);
    if (readGameLink(location.hash)) history.replaceState(history.state, "", location.pathname + location.search);
  });
  dialog.addEventListener("keydown", pressKey);
  document.body.append(dialog);
  return dialog;
}
function show(count, ...parts) {
  const dialog = document.getElementById("ps-game"), body = dialog.querySelector(".ps-game-body");
  dialog.querySelector(".ps-game-count").textContent = count;
  body.replaceChildren(...parts);
  dialog.scrollTop = body.scrollTop = 0;
}
async function openGame(link = null) {
  const dialog = gameDialog();
  if (dialog.open) return;
  drawn?.end();
  dialog.showModal();
  if (!rounds) {
    show("", make("p", "", "The words are on their way…"));
    try { await loadRounds(); } catch {
      const again = button("ps-main", "Try again", () => { dialog.close(); openGame(link); });
      return show("", make("p", "", "The server did not send the words."), again);
    }
  }
  const number = link && link.number <= rounds.length ? link.number : nextGame();
  resumeGame(number, link?.beat ?? []);
}
/* The first game that was not played to the end, or the first of all. */
function nextGame() {
  const open = rounds.findIndex((_, n) => keptBets(n + 1).some((bets) => bets.length < GAPS));
  return open + 1 || 1;
}
function resumeGame(number, beat) {
  keepOpen({ number, beat });
  const game = { number, beat, rounds: rounds[number - 1], bets: keptBets(number) };
  const [first, second] = game.bets.map((bets) => bets.length);
  if (!first) return introduce(game);
  if (first < GAPS) return playGap(game, 0);
  if (second && second < GAPS) return playGap(game, 1);
  showResult(game);
}

/* --- the screens --- */

function paragraph(className, ...parts) {
  const made = make("p", className);
  made.append(...parts);
  return made;
}
function introduce(game) {
  const { beat } = game, begin = button("ps-main", "Begin", () => playGap(game, 0));
  const target = beat.length ? [paragraph("ps-game-beat", "The one to beat: ", make("b", "", twoDigits(beat[0])), beat[1] ? `, and ${twoDigits(beat[1])} with five words` : "", ".")] : [];
  show(`Text ${game.number} of ${rounds.length}`,
    make("p", "ps-game-lead", "Twenty words of a text are hidden. Guess them, and get a perplexity: yours, beside the model’s."), ...target,
    make("p", "", "Tap the word that you think comes next. Tap it again if you are surer, or tap a second word as well. The percentages are your bet: the more you put on the word that came, the lower your perplexity. The model bets on the same six words."),
    make("p", "ps-note", "English, 19th century. About two minutes. Keys 1 to 6 tap, Enter bets. Your bets stay in this browser."), begin);
  begin.focus();
}

function playGap(game, part) {
  const round = game.rounds[part], bets = game.bets[part], number = bets.length, gap = round.gaps[number];
  if (number === GAPS) return showResult(game);
  const taps = Array(OPTIONS).fill(0), group = make("div", "ps-options"), place = `Word ${number + 1} of ${GAPS}`;
  const bet = button("ps-main ps-bet", "No idea", placeBet);
  const options = gap.options.map((word, n) => {
    const option = button("ps-option", "", () => tap(n));
    option.append(make("span", "", word), make("small"));
    return option;
  });
  group.tabIndex = -1;
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `${place}: ${wordsBefore(round.text, gap.at, part ? 5 : 12)}, blank`);
  group.append(...options);
  const text = part ? cutText(round, gap) : textSoFar(round, bets, gap);
  show(`Round ${part + 1} · ${number + 1} of ${GAPS}`, lastWord(round, part, bets), text, group, bet);
  text.scrollTop = text.scrollHeight;
  group.focus({ preventScroll: true });
  update();

  function tap(n) { taps[n] = (taps[n] + 1) % (MOST_TAPS + 1); update(); }
  function update() {
    betOf(taps).forEach((share, n) => {
      options[n].style.setProperty("--bet", `${100 * share}%`);
      options[n].classList.toggle("ps-tapped", taps[n] > 0);
      options[n].lastChild.textContent = asPercent(share);
      options[n].setAttribute("aria-label", `${gap.options[n]}, ${asPercent(share)}`);
    });
    bet.textContent = taps.some(Boolean) ? "Bet" : "No idea";
  }
  function placeBet() {
    bets.push(taps.join(""));
    keepBets(game.number, game.bets);
    playGap(game, part);
  }
}
/* Digits tap; Enter bets, unless a button has the focus and is pressed by it. */
function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const options = document.querySelectorAll("#ps-game .ps-option"), option = options[Number(event.key) - 1];
  if (option) option.click();
  else if (event.key === "Enter" && event.target.matches(".ps-options")) document.querySelector("#ps-game .ps-bet").click();
  else return;
  event.preventDefault();
}
const wordsBefore = (text, at, count) => text.slice(0, at).trim().split(" ").slice(-count).join(" ");
/* The verdict on the last word stands above the next one. */
function lastWord(round, part, bets) {
  const verdict = make("p", "ps-verdict"), n = bets.length - 1;
  verdict.setAttribute("role", "status");
  if (n < 0) return verdict;
  const gap = round.gaps[n], you = betOf([...bets[n]].map(Number))[gap.answer], model = chancesOf(part ? gap.five : gap.whole)[gap.answer];
  verdict.append("It was ", make("b", "", gap.options[gap.answer]), `: you ${asPercent(you)}, the model ${asPercent(model)}.`);
  return verdict;
}
const gapMark = () => make("b", "ps-gap", "?");
function cutText(round, gap) {
  return paragraph("ps-game-text ps-cut-text", `… ${wordsBefore(round.text, gap.at, 5)} `, gapMark());
}
function textSoFar(round, bets, gap) {
  const line = make("p", "ps-game-text");
  let from = 0;
  round.gaps.slice(0, bets.length).forEach((past, n) => {
    const word = past.options[past.answer], share = betOf([...bets[n]].map(Number))[past.answer];
    line.append(round.text.slice(from, past.at), make("b", levelOf(share), word));
    from = past.at + word.length;
  });
  line.append(round.text.slice(from, gap.at), gapMark());
  return line;
}
/* The colour of a word by the chance that it had. */
const levelOf = (share) => "b" + (1 + CHANCES.filter((edge) => share < edge).length);

/* --- the result --- */

function showResult(game) {
  const results = game.bets.filter((bets) => bets.length === GAPS).map((bets, part) => scoreRound(game.rounds[part], part, bets));
  const isWhole = results.length === 2;
  const on = isWhole ? button("", game.number < rounds.length ? "Another text" : "To the first text", () => anotherGame(game)) :
    button("ps-main", "Second round: only five words", () => playGap(game, 1));
  const heading = make("h3", "ps-game-sum", sum(results)), again = button("", "Play this text again", () => { keepBets(game.number, [[], []]); resumeGame(game.number, game.beat); });
  heading.tabIndex = -1;
  show(`Text ${game.number} of ${rounds.length}`, heading, table(results), ...verdicts(game, results), ...(isWhole ? [] : [on]), ...sharing(game, results),
    ...results.map((result, part) => textOf(game.rounds[part], result, part)).reverse(), wordTable(results), paragraph("ps-actions", ...(isWhole ? [on, again] : [again])));
  heading.focus({ preventScroll: true });
}
function anotherGame(game) {
  const number = game.number % rounds.length + 1;
  resumeGame(number, []);
}
function sum(results) {
  const [first, second] = results, you = (result) => twoDigits(Math.exp(result.you.mean)), model = (result) => twoDigits(Math.exp(result.model.mean));
  return second ? `You: ${you(first)}, with five words ${you(second)}. The model: ${model(first)}, with five words ${model(second)}.` :
    `You: ${you(first)}. The model: ${model(first)}.`;
}
function table(results) {
  const made = make("table", "ps-game-table"), row = (tag, ...cells) => {
    const line = make("tr");
    line.append(...cells.map((cell, n) => { const part = make(n ? tag : "th"); part.append(...[cell].flat()); if (!n) part.scope = "row"; return part; }));
    return line;
  };
  const cell = ({ mean, low, high }) => [make("b", "", twoDigits(Math.exp(mean))), make("small", "", `${twoDigits(Math.max(1, Math.exp(low)))} – ${twoDigits(Math.exp(high))}`)];
  made.append(row("th", "", "you", GAME_MODEL), ...results.map((result, part) => row("td", ROUND_NAMES[part], cell(result.you), cell(result.model))));
  made.append(make("caption", "", "Perplexity, among six words: 1 is certainty, 6 no idea. Below each its 95 % interval over twenty words."));
  return made;
}
function verdicts(game, results) {
  const last = results.at(-1), { difference } = last, ahead = difference.mean < 0 ? "You were less surprised than the model" : "The model was less surprised than you";
  const said = [paragraph("ps-verdict", `${results.length === 2 ? "With only five words" : "With all the text"}, ${unsure(Math.exp(last.you.mean))} ${ahead}${isChance(difference) ? ", but over twenty words that may be chance." : ", by more than chance explains."}`)];
  const fooled = fools(last);
  if (fooled) said.push(paragraph("", fooled));
  if (results.length === 2) said.push(paragraph("", windowFelt(results)));
  if (game.beat.length) said.push(paragraph("ps-game-beat", beaten(game, results)));
  return said;
}
const unsure = (perplexity) => perplexity > OPTIONS ? "you were above 6, which is worse than no idea: to be sure of a wrong word costs more than not to know." :
  `you were as unsure as if each time you had chosen among ${twoDigits(perplexity)} equally likely words.`;
const windowFelt = ([first, second]) => {
  const change = differenceOf(second.losses.you, first.losses.you), cut = estimateOf(second.losses.model.map((loss, n) => loss - second.losses.whole[n]));
  const [before, after] = [first, second].map(({ you }) => twoDigits(Math.exp(you.mean)));
  const yours = `With only five words to go by, your perplexity went from ${before} to ${after}${isChance(change) ? ", which over twenty words may be chance" : ""}.`;
  const [whole, five] = [second.losses.whole, second.losses.model].map((losses) => twoDigits(Math.exp(meanOf(losses))));
  const model = cut.mean > 0 ? `The model’s rose${change.mean > 0 ? " too" : ""}: on the same words it is ${whole} with all the text before them and ${five} with five` :
    `The model’s did not rise: on the same words it is ${whole} with all the text before them and ${five} with five. It is small, and makes little of what stands further back`;
  return `${yours} ${model}${isChance(cut) ? " (over twenty words, chance may have a part in it)" : ""}. Five words were your window: what lies outside it cannot help.`;
};
/* The words with the largest difference, either way, of those that got less than an even bet: who has no idea is not fooled. */
function fooling({ words }) {
  const most = (who, other) => words.map((word) => ({ ...word, lead: Math.log(word[other] / word[who]) }))
    .filter((word) => word.lead > FOOL && word[who] < 0.99 / OPTIONS).sort((a, b) => b.lead - a.lead)[0] ?? null;
  return { you: most("you", "model"), model: most("model", "you") };
}
function fools(result) {
  const { you, model } = fooling(result), said = [];
  if (model) said.push(`“${model.word}” fooled the model (it gave it ${asPercent(model.model)}, you ${asPercent(model.you)}).`);
  if (you) said.push(`“${you.word}” fooled you (you gave it ${asPercent(you.you)}, the model ${asPercent(you.model)}).`);
  return said.join(" ");
}
function beaten({ beat }, results) {
  return results.slice(0, beat.length).map((result, part) => {
    const yours = Math.exp(result.you.mean), target = beat[part], among = part ? "with five words" : "with all the text";
    return `To beat ${among}: ${twoDigits(target)}. ${twoDigits(yours) === twoDigits(target) ? "A draw." : yours < target ? "You did." : "You did not."}`;
  }).join(" ");
}
/* The text in both colours: yours behind the words, the model's below them. */
function textOf(round, result, part) {
  const figure = make("figure", "ps-both"), line = make("p", "ps-game-text"), ordered = [...result.words].sort((a, b) => a.at - b.at);
  let from = 0;
  for (const { at, word, you, model } of ordered) {
    const mark = make("b", `${levelOf(you)} ps-m${levelOf(model).slice(1)}`, word);
    mark.title = `you ${asPercent(you)}, the model ${asPercent(model)}`;
    line.append(round.text.slice(from, at), mark);
    from = at + word.length;
  }
  line.append(round.text.slice(from));
  figure.append(make("figcaption", "", `The text of the ${part ? "second" : "first"} round: your surprise behind the words, the model’s below them. The darker, the larger.`), line);
  return figure;
}
function wordTable(results) {
  const fold = make("details"), made = make("table", "ps-game-words");
  fold.append(make("summary", "", "All words as a table"));
  for (const [part, { words }] of results.entries()) {
    const head = make("tr");
    head.append(...["word", "you", GAME_MODEL].map((name) => make("th", "", name)));
    made.append(head);
    for (const { word, you, model } of words) {
      const row = make("tr");
      row.append(make("td", "", word), make("td", "", asPercent(you)), make("td", "", asPercent(model)));
      made.append(row);
    }
  }
  fold.append(made);
  return fold;
}

/* --- to send on --- */

function sharing(game, results) {
  const link = gameLink(game.number, results), source = gameCard(results, link), image = make("img", "ps-picture-card"), row = make("p", "ps-actions");
  const text = `My perplexity on twenty hidden words: ${results.map((result) => twoDigits(Math.exp(result.you.mean))).join(", and with five words ")}. The model’s: ${results.map((result) => twoDigits(Math.exp(result.model.mean))).join(" and ")}. And yours? ${link}`;
  image.src = "data:image/svg+xml," + encodeURIComponent(source);
  image.alt = sum(results);
  const copy = button("", "Copy the link", async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { told.hidden = false; getSelection().selectAllChildren(told); }
  });
  const told = make("p", "ps-game-told", text);
  told.hidden = true;
  row.append(copy, button("", "Save the picture", async () => save("perplexity.png", await pngFile(source))));
  if (navigator.share) row.append(button("", "Send", () => send(text, source)));
  return [make("h3", "", "Send it to somebody"), image, row, told, make("p", "ps-note", "The link opens the same twenty words and says what to beat. It does not show the text, and nothing is stored on the server.")];
}
/* Hand text and picture to another app of the device, or the text alone where it takes no files. */
async function send(text, source) {
  const files = [new File([await pngFile(source)], "perplexity.png", { type: "image/png" })];
  try { await navigator.share(navigator.canShare?.({ files }) ? { text, files } : { text }); } catch { /* the player thought better of it */ }
}
const escapeXml = (text) => text.replace(/[<>&"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
/* The picture: both rounds as numbers and bars, the words that fooled, the address. */
function gameCard(results, link) {
  const width = 1200, full = 760, longest = Math.max(OPTIONS, ...results.flatMap(({ you, model }) => [Math.exp(you.mean), Math.exp(model.mean)])), rows = results.length, [ink, soft, mine, its] = ["#1b2330", "#566074", "#3b4fc4", "#e67d3a"];
  const said = (x, y, size, fill, text, more = "") => `<text x="${x}" y="${y}" font-size="${size}" fill="${fill}" ${more}>${escapeXml(text)}</text>`;
  const long = (mean) => Math.round(full * (Math.exp(mean) - 1) / (longest - 1));
  const bar = (y, mean, fill, name) => `<rect x="240" y="${y}" width="${long(mean)}" height="34" rx="6" fill="${fill}"/>` +
    said(226, y + 26, 26, soft, name, 'text-anchor="end"') + said(252 + long(mean), y + 29, 34, ink, twoDigits(Math.exp(mean)), 'font-weight="700"');
  const parts = results.map((result, part) => said(60, 190 + part * 150, 26, ink, `With ${ROUND_NAMES[part]}`, 'font-weight="600"') + bar(206 + part * 150, result.you.mean, mine, "me") + bar(248 + part * 150, result.model.mean, its, GAME_MODEL));
  const { you, model } = fooling(results.at(-1)), fooled = [model && `“${model.word}” fooled the model`, you && `“${you.word}” fooled me`].filter(Boolean).join(", ");
  const height = 250 + rows * 150;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"><rect width="${width}" height="${height}" rx="24" fill="#ffffff"/>` +
    said(60, 92, 52, ink, "My own perplexity", 'font-weight="700"') + said(60, 136, 26, soft, "Twenty hidden words, six options each: 1 is certainty, 6 no idea.") + parts.join("") +
    said(60, height - 78, 26, ink, fooled) + said(60, height - 36, 26, mine, `And yours? ${link.replace(/^https?:\/\//, "")}`, 'font-weight="600"') + "</svg>";
}

document.addEventListener("click", ({ target }) => { if (target.closest?.("[data-open=game]")) openGame(); });
/* A link to a game opens it, and so does a reload in the middle of one. */
const linkedGame = keptOpen() ?? readGameLink(location.hash);
if (linkedGame && document.readyState === "loading") addEventListener("DOMContentLoaded", () => openGame(linkedGame));
else if (linkedGame) openGame(linkedGame);

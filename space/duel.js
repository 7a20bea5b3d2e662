/* The duel: ten hidden words of a text, and who puts more on the word that came, the visitor or the model.
   The rounds come from duel.json; what is played stays in the player's browser. */
const DUEL_KEPT = "perplexity-sliding-duel", GAPS = 10, OPTIONS = 6;
const TAP = 5, MOST_TAPS = 3; // each tap makes an option five times as likely
const NO_IDEA = 1 / OPTIONS;
const DAY_MS = 86_400_000;
const asPercent = (share) =>
  (share >= 0.995 ? "99" : share >= 0.01 ? (100 * share).toFixed(0) : "< 1") + " %";
const asWord = (n) => ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"][n];

/* The bet on each option: each tap multiplies its odds. */
function betOf(taps) {
  const weights = taps.map((count) => TAP ** count), sum = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / sum);
}
/* The model's chance of each option, given that one of them came. */
function chancesOf(surprisals) {
  const least = Math.min(...surprisals), weights = surprisals.map((nll) => Math.exp(least - nll));
  const sum = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / sum);
}
const tapsOf = (bet) => [...bet].map(Number);
const perplexityOf = (shares) =>
  Math.exp(-shares.reduce((sum, share) => sum + Math.log(share), 0) / shares.length);

/* Whose a word is: the longer bar's, if it is longer than that of no idea; else nobody's. */
function ownerOf({ you, model }) {
  if (Math.max(you, model) < NO_IDEA + 1e-9) return "nobody";
  return you > model ? "you" : "its";
}
const SIGNS = { you: "✓", its: "×", nobody: "–" };
/* Everything about the words that were played: what both gave to each, and whose they are. */
function scoreDuel({ gaps, known, bets }) {
  const words = bets.map((bet, n) => {
    const { options, answer } = gaps[n];
    const you = betOf(tapsOf(bet))[answer], model = chancesOf(gaps[n][known])[answer];
    return { word: options[answer], you, model };
  });
  const owners = words.map(ownerOf), won = (name) => owners.filter((owner) => owner === name).length;
  return { words, owners, you: won("you"), model: won("its") };
}

/* --- what is kept, in this browser alone --- */

function readBets(name) {
  try {
    const bets = JSON.parse(localStorage.getItem(DUEL_KEPT))?.[name];
    const isBet = (bet) => new RegExp(`^[0-${MOST_TAPS}]{${OPTIONS}}$`).test(bet);
    return Array.isArray(bets) && bets.every(isBet) ? bets.slice(0, GAPS) : [];
  } catch {
    return [];
  }
}
function keepBets(name, bets) {
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem(DUEL_KEPT)) ?? {}; } catch { /* nothing of use */ }
  try {
    localStorage.setItem(DUEL_KEPT, JSON.stringify({ ...kept, [name]: bets }));
  } catch { /* then a reload begins anew */ }
}

/* --- which text --- */

let rounds = null;
async function loadRounds() {
  if (rounds) return;
  const answer = await fetch("duel.json");
  if (!answer.ok) throw new Error(`${answer.status}`);
  rounds = await answer.json();
}
// “A title, 1891 (2)” without the number of its part.
const titleOf = (number) => rounds[number - 1].title.replace(/^(.*), (\d+).*$/, "“$1” ($2)");
const todays = () => Math.floor(Date.now() / DAY_MS) % rounds.length;

/* The link of a duel has the number of its text, and how many words its sender won. */
function readDuelLink() {
  const values = new URLSearchParams(location.hash.slice(1)), number = Number(values.get("duel"));
  if (!Number.isInteger(number) || number < 1) return null;
  const beat = Number(values.get("beat") ?? NaN);
  return { number, beat: Number.isInteger(beat) && beat >= 0 && beat <= GAPS ? beat : null };
}
const duelLink = (number, won) => `${location.origin}${location.pathname}#duel=${number}&beat=${won}`;

/* --- the screens --- */

function paragraph(name, ...parts) {
  const made = make("p", name);
  made.append(...parts);
  return made;
}

let chosen = null; // what was played or read last, to which one comes back
async function openDuel(link = chosen) {
  if (byId("duel")) return;
  const { dialog, body } = openDialog("duel", "Beat the machine");
  dialog.addEventListener("close", () => {
    if (document.activeElement === document.body) byId("open-duel").focus();
  });
  dialog.addEventListener("keydown", pressKey);
  try {
    await loadRounds();
  } catch {
    return body.append(make("p", "alert", "The words did not arrive. Close this, and try again."));
  }
  const number = link && link.number <= rounds.length ? link.number : todays() + 1;
  return startDuel(number, link?.beat ?? null, link?.known);
}

function show(count, ...parts) {
  const dialog = byId("duel");
  dialog.querySelector(".count").textContent = count;
  dialog.querySelector(".body").replaceChildren(...parts);
  dialog.scrollTop = 0;
}

function startDuel(number, beat, known = "whole") {
  chosen = { number, beat, known };
  const round = rounds[number - 1], gaps = known === "whole" ? round.gaps : round.more;
  const name = `${number}-${known}`;
  const duel = { number, beat, known, round, gaps, name, bets: readBets(name) };
  if (duel.bets.length < GAPS) return playGap(duel, introduce(duel));
  return showResult({ ...duel, isOwn: scoreDuel(duel).you === beat }); // a link that was sent from here
}

/* What stands above the first words: the rule, and who sent them. */
function introduce({ number, beat, known, round, bets }) {
  const made = make("div", "rule"), begun = bets.length ? " You have begun already." : "";
  if (beat !== null) made.append(paragraph("beat", `A friend sent you this, and won ${asWord(beat)} of ten.${begun}`));
  if (bets.length) return made;
  const [once, twice, most] = [1, 2, 3].map((taps) => asPercent(betOf([taps, 0, 0, 0, 0, 0])[0]));
  const isTouched = matchMedia("(pointer: coarse)").matches, keys = isTouched ? "" : " Or use the keys 1 to 6 and Enter.";
  const tongue = round.language === "English" ? "" : ` It never read ${round.language}.`;
  made.append(
    make("p", "lead", known === "five" ? "Ten more words, with five words before each."
      : "Who guesses ten hidden words better, you or the machine?"),
    make("p", "", `${isTouched ? "Tap" : "Click"} once to bet ${once}, twice ${twice}, thrice ${most}. The higher bet on the right one wins.`),
    make("p", "quiet", `The machine is a tiny language model. It read old novels, not ${titleOf(number)}.${tongue}${keys}`));
  return made;
}

/* What stands below the text, always as high: the text stays where it is. */
function below(...parts) {
  const made = make("div", "below");
  made.append(...parts);
  return made;
}

/* Ten bars, of the colour of who won each word; what a screen reader needs of it is in the score. */
function progressOf(duel, now = -1) {
  const { owners } = scoreDuel(duel), line = make("div", "progress");
  line.ariaHidden = "true";
  for (let n = 0; n < GAPS; n++) line.append(make("i", owners[n] ?? (n === now ? "now" : "")));
  return line;
}

/* The running score, as both read it. */
function scoreLine(duel) {
  const { you, model } = scoreDuel(duel);
  const line = make("p", "score");
  line.append("You ", make("b", "you", you), " · the machine ", make("b", "its", model));
  return line;
}

function playGap(duel, introduction = "") {
  const number = duel.bets.length, gap = duel.gaps[number];
  const taps = Array(OPTIONS).fill(0), group = make("div", "options");
  const shownAt = performance.now(), most = make("p", "quiet most");
  most.setAttribute("role", "status");
  const reveal = button("No idea: show it", () => placeBet(), "go");
  const options = gap.options.map((word, n) => {
    const option = button("", () => tap(n), "option");
    // After the mouse, Enter goes on; on an option that the keyboard came to, it taps.
    option.addEventListener("click", ({ detail }) => { if (detail) group.focus({ preventScroll: true }); });
    option.append(make("span", "", word), " ", make("small"));
    return option;
  });
  const text = textSoFar(duel, number, false);
  group.tabIndex = -1;
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `Word ${number + 1} of ${GAPS}: ${lastWords(duel.round.text, gap.at, 12)}, blank`);
  group.append(...options);
  const score = number ? scoreLine(duel) : "";
  show(`${number + 1} of ${GAPS}`, progressOf(duel, number), introduction, score, text, below(group, most), reveal);
  text.scrollTop = text.scrollHeight;
  group.focus({ preventScroll: true });
  if (number) text.scrollIntoView({ block: "nearest" });
  update();

  function tap(n) {
    taps[n] = (taps[n] + 1) % (MOST_TAPS + 1);
    update();
  }
  function update() {
    const isBlind = !taps.some(Boolean);
    betOf(taps).forEach((share, n) => {
      options[n].style.setProperty("--bet", `${isBlind ? 0 : 100 * share}%`);
      options[n].classList.toggle("tapped", taps[n] > 0);
      options[n].lastChild.textContent = isBlind ? "" : asPercent(share);
    });
    most.textContent = taps.includes(MOST_TAPS) ? "That is the most: one more tap takes it back." : "";
    reveal.textContent = isBlind ? "No idea: show it" : "Show the word";
    reveal.classList.toggle("main", !isBlind);
  }
  function placeBet() {
    // The second press of two on the button before is no answer.
    if (!taps.some(Boolean) && performance.now() - shownAt < TWICE_MS) return;
    duel.bets.push(taps.join(""));
    keepBets(duel.name, duel.bets);
    showWord(duel);
  }
}

/* The word that came, and both bets on all six: the longer bar is the better one. */
function showWord(duel) {
  const number = duel.bets.length - 1, gap = duel.gaps[number];
  const mine = betOf(tapsOf(duel.bets[number])), its = chancesOf(gap[duel.known]);
  const { answer } = gap, owner = ownerOf({ you: mine[answer], model: its[answer] }), shownAt = performance.now();
  const table = make("div", "bars");
  gap.options.forEach((word, n) => {
    const row = make("div", n === answer ? "row came" : "row");
    for (const [name, share] of [["you", mine[n]], ["its", its[n]]]) {
      const bar = make("i", name);
      bar.style.width = `${100 * share}%`;
      const told = make("span", "bar");
      told.append(bar, make("small", "", asPercent(share)));
      row.append(told);
    }
    row.prepend(make("b", "", n === answer ? `${word} ✓` : word));
    table.append(row);
  });
  const won = { you: "This one is yours.", its: "The machine takes it.", nobody: "Nobody knew: it is no one’s." }[owner];
  const verdict = paragraph("verdict", "It was ", make("b", "", gap.options[answer]),
    `: you ${asPercent(mine[answer])}, the machine ${asPercent(its[answer])}. ${won}`);
  verdict.setAttribute("role", "status");
  const isLast = duel.bets.length === GAPS;
  const next = button(isLast ? "Who won?" : "Next word", () => {
    if (performance.now() - shownAt > TWICE_MS) (isLast ? showResult : playGap)(duel);
  }, "main go");
  const rule = ` · The longer bar on the right word wins it; a blind guess, ${asPercent(NO_IDEA)}, wins nothing.`;
  const key = paragraph("quiet key", make("i", "you"), " you ", make("i", "its"), " the machine", number ? "" : rule);
  const text = textSoFar(duel, number, true);
  show(`${number + 1} of ${GAPS}`, progressOf(duel), scoreLine(duel), text, below(verdict, table, key), next);
  text.scrollTop = text.scrollHeight;
  next.focus({ preventScroll: true });
  verdict.scrollIntoView({ block: "nearest" });
}

/* Digits tap; Enter goes on, unless a button has the focus and is pressed by it. */
function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const option = document.querySelectorAll("#duel .option")[Number(event.key) - 1];
  if (option) {
    option.click();
    option.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && event.target.matches(".options")) document.querySelector("#duel .go").click();
  else return;
  event.preventDefault();
}
const lastWords = (text, at, count) => text.slice(0, at).trim().split(" ").slice(-count).join(" ");

/* The text up to a gap, with what was played in it; five words before it where more are not known. */
function textSoFar(duel, number, isShown) {
  const { text } = duel.round, gap = duel.gaps[number];
  const line = make("div", gap.at > LARGE && duel.known === "whole" ? "passage" : "passage short"), words = make("p");
  line.tabIndex = 0;
  line.setAttribute("role", "group");
  line.setAttribute("aria-label", "The text up to the hidden word");
  line.append(words);
  const word = gap.options[gap.answer], mark = make("b", "gap", isShown ? word : "?");
  if (duel.known === "five") {
    words.append(`… ${lastWords(text, gap.at, 5)} `, mark);
    return line;
  }
  const { words: played, owners } = scoreDuel(duel);
  let from = 0;
  duel.gaps.slice(0, number).forEach((past, n) => {
    words.append(text.slice(from, past.at), make("b", owners[n], played[n].word));
    from = past.at + played[n].word.length;
  });
  words.append(text.slice(from, gap.at), mark);
  return line;
}

/* --- the end --- */

function showResult(duel) {
  const result = scoreDuel(duel), { you, model, words, owners } = result, { number, round, beat, known } = duel;
  const heading = make("h3", "", you > model ? `You beat the machine, ${you} to ${model}.`
    : you < model ? `The machine wins, ${model} to ${you}.` : `A draw, ${asWord(you)} all.`);
  heading.tabIndex = -1;
  const mine = perplexityOf(words.map((word) => word.you)), its = perplexityOf(words.map((word) => word.model));
  const squares = make("div", "squares");
  const line = paragraph("", ...owners.map((owner) => make("i", owner, SIGNS[owner])));
  line.setAttribute("role", "img");
  line.setAttribute("aria-label", words.map(({ word }, n) =>
    `${word}: ${{ you: "yours", its: "the machine’s", nobody: "nobody’s" }[owners[n]]}`).join(", "));
  const neither = you + model < GAPS ? ", – nobody’s" : "";
  squares.append(line, make("p", "quiet", `The ten words of ${titleOf(number)}: ✓ yours, × the machine’s${neither}.`));
  const isOdd = (you - model) * (its - mine) < 0; // who won more words has the higher perplexity
  const odd = isOdd ? ` ${you > model ? "You" : "The machine"} won more words, but paid more for the others.` : "";
  const lower = paragraph("score", "Perplexity: you\u00a0", make("b", "you", number2(mine)), " ·\u00a0the\u00a0machine\u00a0", make("b", "its", number2(its)));
  const explained = make("p", "", "As if each of you had chosen every time among this many equally likely words. " +
    `Lower is better; never betting on any of the six gives 6, and betting high on a wrong one costs most.${odd}`);
  const than = you > beat ? "fewer than you" : you < beat ? "more than you" : "as many as you";
  const friend = beat === null ? [] : [paragraph("beat", !duel.isOwn ? `Your friend won ${asWord(beat)}, ${than}.`
    : "This link is your own. Is somebody else here? Then play it again.")];
  const more = round.more.length && known === "whole"
    ? [button("Ten more, with five words before each", () => startDuel(number, null, "five"))] : [];
  const next = (language) => {
    let at = number % rounds.length;
    while (rounds[at].language !== language) at = (at + 1) % rounds.length;
    return startDuel(at + 1, null);
  };
  const tongues = new Set(rounds.map(({ language }) => language));
  const others = [...tongues].filter((language) => language !== round.language)
    .map((language) => button(`One in ${language}`, () => next(language)));
  const another = button("Another text", () => next(round.language), duel.isOwn ? "" : "main");
  const again = button("Play it again", () => { keepBets(duel.name, []); startDuel(number, beat, known); },
    duel.isOwn ? "main" : "");
  const row = make("p", "row");
  row.append(another, ...others, ...more, again);
  show("", heading, ...friend, squares, sending(drawDuel(duel, result), message(duel, result), "duel.png"), lower, explained, row);
  heading.focus({ preventScroll: true });
}
const number2 = (value) => value.toFixed(2);

function message({ number, known }, { you, model, owners }) {
  const how = known === "five" ? ", with five words before each" : "";
  const squares = owners.map((owner) => ({ you: "🟦", its: "🟧", nobody: "⬜" })[owner]).join("");
  return `Guessing ten hidden words${how}: me ${you}, the machine ${model}.\n${squares}\nYour turn: ${duelLink(number, you)}`;
}

async function drawDuel({ number }, { you, model, owners }) {
  const { canvas, draw } = await beginCard(), { margin, height, width } = CARD;
  const step = (width - 2 * margin + 12) / GAPS, size = step - 12, y = 262;
  write(draw, `Me ${you}, the machine ${model}`, margin, 130, 84, { weight: 700 });
  write(draw, `Ten hidden words of ${titleOf(number)}`, margin, 196, 34, { ink: "#566074" });
  owners.forEach((owner, n) => {
    draw.fillStyle = { you: "#3b4fc4", its: "#b5530f", nobody: "#566074" }[owner];
    draw.beginPath();
    draw.roundRect(margin + n * step, y, size, size, 14);
    draw.fill();
    draw.textAlign = "center";
    write(draw, SIGNS[owner], margin + n * step + size / 2, y + size / 2 + 20, 58, { weight: 700, ink: "#ffffff" });
    draw.textAlign = "start";
  });
  write(draw, "✓ mine, × the machine’s", margin, y + size + 62, 34, { ink: "#566074" });
  write(draw, `Your turn: ${shortAddress()}`, margin, height - 56, 40, { ink: "#3b4fc4", weight: 600 });
  return finish(canvas);
}

byId("open-duel").addEventListener("click", () => openDuel());
const linkedDuel = readDuelLink();
begin().then(() => { if (linkedDuel) openDuel(linkedDuel); });

/* The game: a word of the text is hidden, the visitor guesses it, and the model has guessed it too. */
const ROUNDS = 5, LONGEST_GUESS = 40, FEWEST_BEFORE = 8, SHOWN_BEFORE = 220;
const GAME_WORD = /^\s?\p{L}{3,}$/u;
const bare = (guess) => guess.replace(/^\P{L}+|\P{L}+$/gu, "").toLocaleLowerCase(); // a full stop is no other word

/* Words of one token, with some text before them and after: five of them, in the order of the text. */
function hiddenWords({ names, bits, alternatives, context, segments }) {
  const whole = segments.filter((range) => range && range[0] === range[1]).map(([token]) => token);
  const ends = (token) => token + 1 === names.length || !/^\p{L}/u.test(names[token + 1]);
  const fit = whole.filter((token) => bits[token] !== null && alternatives[token] && context[token] >= FEWEST_BEFORE && /^\s/.test(names[token]) && GAME_WORD.test(names[token]) && ends(token));
  for (let n = fit.length - 1; n > 0; n--) { const k = Math.floor(Math.random() * (n + 1)); [fit[n], fit[k]] = [fit[k], fit[n]]; }
  return fit.slice(0, ROUNDS).sort((a, b) => a - b);
}

function playGame(dialog) {
  const data = drawn?.data, words = data ? hiddenWords(data) : [];
  const body = dialog.querySelector(".ps-game-body"), rounds = [];
  if (!document.querySelector("#text textarea").value.trim()) return body.replaceChildren(make("p", "", "There is no text to hide words of. Close this, and write or paste one."));
  if (document.querySelector(".ps-card.ps-stale")) return body.replaceChildren(make("p", "", "Your text has changed and is not scored yet. Close this, and begin once its number is there."));
  if (words.length < ROUNDS) return body.replaceChildren(make("p", "", "This text has too few whole words to hide. Take a longer one."));
  const heading = document.querySelector(".ps-card .ps-label")?.textContent.split(" for ").at(-1) ?? "the model";
  next();

  function next() {
    const token = words[rounds.length], line = make("p", "ps-game-text"), form = make("form", "ps-game-form"), field = make("input");
    const told = data.names.slice(0, token).join(""), cut = told.length > SHOWN_BEFORE, go = make("button", "ps-button", "Guess"), pass = make("button", "ps-button", "No idea");
    line.append(cut ? "… " : "", cut ? told.slice(-SHOWN_BEFORE).replace(/^\S*\s+/, "") : told, " ", make("b", "ps-gap", "?"));
    Object.assign(field, { type: "text", maxLength: LONGEST_GUESS, autocomplete: "off", autocapitalize: "off", spellcheck: false });
    line.id = "ps-game-line";
    field.setAttribute("aria-label", "Which word comes next?");
    field.setAttribute("aria-describedby", line.id);
    go.type = "submit";
    pass.type = "button";
    form.append(field, go, pass);
    form.addEventListener("submit", (event) => { event.preventDefault(); if (field.value.trim()) reveal(token, field.value.trim()); });
    pass.addEventListener("click", () => reveal(token, ""));
    body.replaceChildren(make("p", "ps-note", `Round ${rounds.length + 1} of ${ROUNDS}: which word comes next?`), line, form);
    field.focus();
  }
  function reveal(token, guess) {
    const word = data.names[token].trim(), rank = data.rank[token], same = (a, b) => bare(a) === bare(b);
    rounds.push({ you: same(guess, word), model: rank === 1 });
    const said = guess === "" ? `It was “${word}”.` : same(guess, word) ? `Yes: “${word}”.` : `You said “${guess}”; it was “${word}”.`;
    const on = make("button", "ps-button", rounds.length === ROUNDS ? "See the result" : "Next word");
    on.type = "button";
    on.addEventListener("click", rounds.length === ROUNDS ? finish : next);
    const verdict = make("p", "ps-game-said", said);
    verdict.id = "ps-game-verdict";
    on.setAttribute("aria-describedby", verdict.id); // said with the button, which takes the focus
    body.replaceChildren(verdict, make("p", "", rank === 1 ? "The model had it as its first guess." : `For the model it was the ${ordinal(rank)} guess. It expected:`),
      guesses(data.alternatives[token], visible(data.names[token]), data.bits[token], rank), score(), on);
    on.focus();
  }
  const marks = (who) => rounds.map((round) => round[who] ? "🟩" : "⬜").join("");
  const won = (who) => rounds.filter((round) => round[who]).length;
  function score() { return make("p", "ps-note", `You ${won("you")}, ${heading} ${won("model")}.`); }
  function finish() {
    const text = `Guess the hidden word: I had ${won("you")} of ${ROUNDS}, ${heading} ${won("model")}.\nme ${marks("you")}\n${heading} ${marks("model")}\n${location.href}`;
    const verdict = won("you") > won("model") ? "You know this text better than the model." : won("you") < won("model") ? "The model knew better." : "A draw.";
    const copy = make("button", "ps-button", "Copy to share"), again = make("button", "ps-button", "Play again"), told = make("pre", "ps-game-result", text);
    copy.type = again.type = "button";
    copy.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(told); copy.textContent = "Selected: copy it"; }
    });
    again.addEventListener("click", () => playGame(dialog));
    copy.setAttribute("aria-describedby", "ps-game-verdict");
    const last = make("p", "ps-game-said", `You ${won("you")}, ${heading} ${won("model")}. ${verdict}`);
    last.id = "ps-game-verdict";
    body.replaceChildren(last, told, copy, " ", again);
    copy.focus();
  }
}

/* Drawers slide in at the side, on a phone from below; the game is a dialog. */
let opener = null;
function openDrawer(id, button) {
  const drawer = document.getElementById(id);
  if (!drawer) return;
  drawn?.end();
  if (opener) closeDrawers();
  opener = button;
  drawer.inert = false;
  drawer.classList.add("ps-open");
  button.setAttribute("aria-expanded", "true");
  focusInto(drawer);
}
/* Gradio lets what it draws fade in, and nothing that is still hidden takes the focus. */
function focusInto(drawer) {
  if (!drawer.matches(".ps-open") || drawer.contains(document.activeElement)) return;
  drawer.querySelector("[data-close]")?.focus();
  requestAnimationFrame(() => focusInto(drawer));
}
function closeDrawers(givesBack = true) {
  for (const drawer of document.querySelectorAll(".ps-drawer")) { drawer.classList.remove("ps-open"); drawer.inert = true; }
  for (const button of document.querySelectorAll("[data-open][aria-expanded=true]")) button.setAttribute("aria-expanded", "false");
  const back = opener?.isConnected ? opener : document.querySelector(`[data-open="${opener?.dataset.open}"]`);
  opener = null;
  if (givesBack) back?.focus();
}
function openGame() {
  let dialog = document.getElementById("ps-game");
  if (!dialog) {
    dialog = make("dialog", "ps-view ps-game");
    dialog.id = "ps-game";
    const close = make("button", "ps-button ps-game-close", "✕");
    close.type = "button";
    close.setAttribute("aria-label", "Close the game");
    close.addEventListener("click", () => dialog.close());
    dialog.append(close, make("h2", "", "Guess the hidden word"), make("div", "ps-game-body"));
    dialog.setAttribute("aria-label", "Guess the hidden word");
    document.body.append(dialog);
  }
  drawn?.end();
  dialog.showModal();
  playGame(dialog);
}
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-open]");
  if (button?.dataset.open === "game") return openGame();
  if (button) return openDrawer(button.dataset.open, button);
  if (event.target.closest?.("[data-close]") || (opener && !event.target.closest?.(".ps-drawer, ul[role=listbox]"))) closeDrawers();
});
document.addEventListener("keydown", ({ key, isTrusted }) => { if (key === "Escape" && isTrusted && opener) closeDrawers(); });
/* Whoever goes on by Tab leaves it: below lie controls that nobody would see. */
document.addEventListener("focusin", ({ target }) => { if (opener && target !== opener && !target.closest(".ps-drawer, ul[role=listbox], #status")) closeDrawers(false); });

/* The page: what was chosen, what is scored, and what is said about it. */
const SETTINGS = ["model", "window", "stride", "start", "protocol"];
const KEPT = "perplexity-sliding", TYPED_MS = 150, CHARACTERS_A_MS = 100, MILLION = 1e6;
// An interval's upper end is so many times its lower one, of a clear number and of one that is about right.
const CLEAR = 1.1, VAGUE = 2;
// Parts of the first surprise that are left of a text that is remembered, and of one that is forgotten.
const REMEMBERED = 0.5, GONE_BY = 0.8;
const TWICE_MS = 400; // in which a second press is one too many
const WARM = ["b0", "b1", "b2", "b3", "b4", "b5"];
// Of each: its name, the classes of its colours, and what the first and the last of them say.
const COLOURS = {
  surprise: ["word surprise", WARM, "expected", "surprising"],
  token: ["token surprise", WARM, "expected", "surprising, token by token"],
  rank: ["rank of guess", WARM, "its first guess", "far down its list"],
  context: ["tokens before", ["c0", "c1", "c2", "c3", "c4", "c5"], "few tokens before it", "many"],
  window: ["window", ["n0", "n1", "n2"], "guessed in one window", "in the next ones"],
};
const state = { model: PAGE.models[0], window: null, stride: null, start: null, protocol: null, context: "" };
let result = PAGE.opening; // the last score
let isAsked = false; // whether the visitor changed anything: then the address follows
let before = null, put = null; // the text that another one replaced, and that other one
let forgets = false; // whether the window was made shorter than a text that is said twice
let typed = ""; // the visitor's own text, to which one comes back from others
let first = area.value; // the text that was there when the page opened
let shown = ""; // the sample that stands there
let hasArrived = false; // whether the text was pasted or read from a file, and was not scored yet
let hasGlided = false;
const editor = new Editor(choose);
let asking = null; // the field for researchers that was changed, until its score is there
const showBusy = busyIn(byId("busy"));
const line = new Line("score", (words, share, isAlert) => {
  showBusy(words, share, isAlert);
  if (!isAlert || words === GONE) return;
  if (asking) markWrong(asking, words);
  if (!editor.isOwn()) byId("answer").classList.add("awaited"); // the number is of another text
});

const POINT = matchMedia("(pointer: coarse)").matches ? "Tap" : "Point at";
const HINT = `Type your own words. ${POINT} a word to see what was expected.`;

/* Say what the colours mean. */
function drawLegend() {
  const [, names, low, high] = COLOURS[editor.colouring];
  byId("legend").replaceChildren(low, ...names.map((name) => make("i", name)), high);
}

function request() {
  return { ...state, text: written() };
}

/* --- scoring --- */

let waiting = null;
function changed() {
  isAsked = true;
  byId("questions").classList.add("mine"); // what was said beside them is of another text
  keep();
  for (const id of ["answer", "numbers"]) byId(id).classList.add("old");
  byId("open-share").disabled = byId("play").disabled = true; // until the number is of this text
  twice.disabled = !area.value.trim();
  clearTimeout(waiting);
  waiting = setTimeout(score, Math.min(LATE_MS, TYPED_MS + area.value.length / CHARACTERS_A_MS));
}

async function score() {
  clearTimeout(waiting);
  const asked = request();
  if (!asked.text.trim()) {
    line.stop();
    say("There is no text yet. Write or paste one, or choose one above.");
    byId("answer").className = "awaited";
    followAddress();
    return null;
  }
  const answer = await line.ask(asked);
  if (!answer || asked.text !== written()) return null;
  showScore(answer);
  const { window, longest, model } = answer.settings;
  if (state.window > window) {
    showBusy(`A window of ${fmt(state.window)} tokens was asked for, but ${model} reads ${fmt(longest)} at most: the ` +
      `number is of ${fmt(window)}.`);
    state.window = window;
  }
  if (hasArrived) glide();
  hasArrived = false;
  followAddress();
  askOpenQuestions();
  return answer;
}

function choose(chosen) {
  Object.assign(state, chosen);
  if ("window" in chosen && state.stride > state.window) state.stride = null;
  changed();
}

/* Put another text in the place of the present one, to which the browser's Back comes back. */
function setText(text, words, from) {
  pushStep({});
  putText(text, words, from);
}

/* Say in the list of texts which of them stands there, "" for one's own. */
function showSample(path) {
  shown = sample.value = path;
}

function putText(text, words, from = area.value) {
  endLesson();
  yours.hidden = yours.disabled = !typed || typed === text;
  [before, put] = [from, text];
  back.hidden = before === put || text === typed;
  showSample("");
  area.value = text;
  area.scrollTop = mirror.scrollTop = 0;
  editor.showWindow(false);
  say(words ?? HINT);
  editor.lay();
  changed();
}

/* Bring back the text that was there before another was put in its place; also by the keys that undo. */
const back = byId("back");
function goBack() {
  setText(before);
  before = null;
  back.hidden = true;
  pressedAt = -TWICE_MS; // what is pressed now is no second press
}
back.addEventListener("click", () => { goBack(); area.focus({ preventScroll: true }); });
area.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.shiftKey || event.key !== "z" || area.value !== put) return;
  event.preventDefault();
  if (before !== null) goBack();
});

area.addEventListener("input", ({ inputType }) => {
  endLesson();
  showSample("");
  back.hidden = true;
  typed = area.value;
  hasArrived = inputType === "insertFromPaste";
  const counted = /\S {2,}\S/.test(area.value) ? " Double spaces count too, and change the number." : "";
  say(`${POINT} a word to see what was expected.${counted}`);
  changed();
});
// The first words are there to be replaced: who comes to them selects them, but for a finger on a word.
area.addEventListener("focus", () => {
  if (!isAsked && !matchMedia("(pointer: coarse)").matches) area.select();
}, { once: true });
area.addEventListener("click", ({ clientX, clientY }) => {
  if (!isAsked && editor.under(clientX, clientY) < 0) area.select();
});

/* --- what is said about it --- */

function showScore(answer) {
  result = answer;
  answer.halves = halvesOf(answer);
  forgets = Boolean(answer.halves) && state.window !== null && answer.text.windows.length > 1;
  byId("answer").className = "";
  byId("open-share").disabled = byId("play").disabled = false;
  editor.show(answer.text, answer.settings);
  byId("play").hidden = answer.text.windows.length < 2 || !answer.text.slides || Boolean(answer.halves);
  const { about, figures, give, isVague, means, verdict } = wordsOf(answer);
  byId("perplexity").replaceChildren(...(about ? [make("small", "", `${about} `)] : []), figures);
  byId("perplexity").classList.toggle("words", answer.perplexity > MILLION);
  byId("perplexity").classList.toggle("vague", isVague);
  byId("give").textContent = `perplexity${give}`;
  byId("means").textContent = means;
  byId("verdict").textContent = verdict;
  const { model, window, longest } = answer.settings, part = window < longest ? `${fmt(window)} of its ` : "";
  const isOurs = model === PAGE.models[0];
  byId("who").textContent = `This one is ${isOurs ? "tiny, and has read only old novels" : model}. ` +
    `It sees at most ${part}${tokens(longest)} (words or parts of words) at once: its window.`;
  drawScale(answer);
  tellWorst(answer.worst);
  showLab(answer);
  teach(answer);
}

const inFigures = (value, digits) =>
  value > MILLION ? "more than a million" : digits ? fmt(Number(value.toPrecision(digits))) : number(value);

/* What is said of a score: its number, with as many figures as it deserves, the ends between which it
   lies, what it means, and where it stands; of a text that is said twice, the number of either time. */
function wordsOf(answer) {
  const { perplexity, interval, vague: isVague, verdict, text, halves, settings: { vocabulary } } = answer;
  if (halves) return wordsOfHalves(halves);
  const wide = !text.averaged ? 1 : interval ? interval[1] / interval[0] : Infinity;
  const figures = inFigures(perplexity, wide > CLEAR ? 2 : 0);
  const [low, high] = (interval ?? []).map((end) => inFigures(end, wide > CLEAR ? 2 : 3));
  return {
    about: wide > VAGUE && perplexity <= MILLION ? "about" : "",
    figures,
    isVague,
    give: perplexity > MILLION || isVague || !interval ? ""
      : `; ${wide > VAGUE && text.windows.length < 2 ? "so short a text" : "a text like it"} could give ${low === high ? low : `${low} to ${high}`}`,
    means: isVague ? "Of so few words it says little yet. Write on."
      : perplexity > vocabulary
      ? `${interval && interval[0] < vocabulary ? "Perhaps worse" : "Worse"} than a blind choice among the ${tokens(vocabulary)} that it knows.`
      : `As if it chose, each time, among ${figures} equally likely tokens (words or parts of words).`,
    verdict,
  };
}

function wordsOfHalves(halves) {
  const [first, second] = halves.map((value) => inFigures(value, 2));
  return {
    about: "",
    isVague: false,
    figures: `${first} → ${second}`,
    give: ": the first time → the second",
    means: `As if it chose among ${first} equally likely tokens, and the second time among ${second}.`,
    verdict: leftOf(halves) < REMEMBERED ? "The second time is no surprise."
      : !forgets ? "It hardly remembers the first time."
      : leftOf(halves) > GONE_BY ? "It has forgotten the first time." : "It has forgotten all but what its window repeats.",
  };
}

function tellWorst(worst) {
  const told = byId("story");
  told.replaceChildren();
  if (!worst) return;
  const word = make("button", `word ${colour(worst.bits)}`, worst.word);
  word.type = "button";
  word.addEventListener("click", () => editor.reveal(worst.piece));
  const whole = make("span", "whole"); // with its comma
  const [first, last] = editor.tokensOf(editor.words[worst.piece]);
  word.setAttribute("aria-label", `${worst.word}: show it in the text`);
  whole.append(word, ",");
  told.append("Biggest surprise: ", whole, ` ${worst.odds}${last > first ? ` (${tokens(last - first + 1)} together)` : ""}.`);
  if (worst.expected) told.append(" Likeliest word there: ", make("b", "", quoted(worst.expected)), ".");
}

/* The scale from certainty to nonsense: landmarks below a line, the text above it with its ±. */
function drawScale(answer) {
  const { perplexity, interval, landmarks, placed, halves } = answer;
  const scale = byId("scale"), ends = landmarks.map(([, value]) => Math.log(value));
  // What is beyond all landmarks stands at the end, and leaves them room.
  const low = -0.2, farthest = Math.max(...ends), beyond = Math.log(Math.max(1, perplexity));
  const high = clamp(beyond, farthest, farthest + 1.5) + 0.4;
  const at = (value) => clamp((100 * (Math.log(Math.max(1, value)) - low)) / (high - low), 0, 100);
  const put = (name, from, to, words) => {
    const part = make("span", name, words);
    part.style.left = `${from}%`;
    if (to !== null) part.style.width = `${to - from}%`;
    scale.append(part);
    return part;
  };
  scale.replaceChildren(make("span", "axis"));
  const known = landmarks.map(([name, value]) => `${name} ${number(value)}`);
  scale.setAttribute("aria-label", `A scale: ${known.join(", ")}${placed ? `; your text ${wordsOf(answer).figures}` : ""}`);
  if (placed && !halves && answer.text.averaged) put("range", ...(interval?.map(at) ?? [0, 100]));
  if (placed && halves) {
    put("way", ...halves.map(at).sort((a, b) => a - b));
    put("own first", at(halves[0]), null);
  }
  if (placed) put("own", at(halves ? halves[1] : perplexity), null);
  const marks = landmarks.map(([name, value]) => {
    put("tick", at(value), null);
    return put("landmark", at(value), null, name.replace(/^(a|the) /, ""));
  });
  const rows = []; // where the last name of each row ends: names that would touch stand below each other
  const box = scale.getBoundingClientRect();
  for (const mark of marks) {
    const width = mark.offsetWidth;
    const begin = clamp(mark.offsetLeft - width / 2, 0, Math.max(0, box.width - width));
    let row = rows.findIndex((end) => end + 8 < begin);
    if (row < 0) row = rows.length;
    rows[row] = begin + width;
    mark.style.left = `${begin}px`;
    mark.style.top = `${26 + 18 * row}px`;
  }
  scale.style.height = `${30 + 18 * Math.max(2, rows.length)}px`;
}

/* --- say it twice --- */

const twice = byId("twice");

/* Characters of a text that is said twice, up to where it is said again; 0 for other texts. */
function halfOf(text) {
  const half = (text.length - 1) / 2, said = text.slice(0, half);
  const isRow = new Set(said.split(/\s+/)).size === 1 && said.includes(" "); // of one word
  return half > 2 && !isRow && /\s/.test(text[half] ?? "") && said === text.slice(half + 1) ? half : 0;
}

/* The perplexities of the first time and of the second; null where a text is not said twice. */
function halvesOf({ text, settings }) {
  const { pieces, segments, bits, before } = text, half = halfOf(pieces.text.slice(before));
  if (!half || !text.averaged || bits.length > settings.longest) return null;
  const own = [[], []];
  let at = -before;
  pieces.lengths.forEach((length, n) => {
    at += length;
    if (segments[n]) own[at > half + 1 ? 1 : 0].push(...bits.slice(segments[n][0], segments[n][1] + 1));
  });
  const scored = own.map((part) => part.filter((value) => value !== null));
  if (scored.some((part) => !part.length)) return null;
  return scored.map((part) => 2 ** (part.reduce((a, b) => a + b) / part.length));
}

/* The part of the surprise that is left the second time. */
const leftOf = ([first, second]) => Math.log(second) / Math.log(first);

/* Say what a text that is said twice shows, with the window in which the first time is forgotten. */
function teach(answer) {
  const isTwice = Boolean(answer.halves);
  twice.textContent = !isTwice ? "Say it twice" : forgets ? "Let it remember" : "Let it forget";
  if (!isTwice) return;
  if (forgets) {
    editor.showWindow(true);
    editor.step(answer.text.windows.length - 1);
  }
  say(forgets
    ? `Its window, the frame, now holds only ${tokens(answer.settings.window)}: ` + (leftOf(answer.halves) > GONE_BY
      ? "the first time has fallen out of it, and the second surprises again."
      : "a part of the first time is still in it.")
    : leftOf(answer.halves) < REMEMBERED
      ? "The second time, it looks back at the first, which is still in its window: that is context."
      : "The first time is still in its window, but so short or strange a text is hardly recognised.");
}

/* Another text has a window of its own again. */
function endLesson() {
  if (forgets) {
    Object.assign(state, { window: null, stride: null });
    editor.showWindow(false);
  }
  forgets = false;
  if (!halfOf(written())) twice.textContent = "Say it twice";
}

/* As much of the text as fits twice into a window, up to the end of a sentence or a word. */
function saidOnce() {
  const { bits, pieces, segments } = result.text, most = Math.floor(result.settings.longest / 2) - 4;
  if (bits.length <= most) return area.value.trim();
  const last = segments.findIndex((range) => range && range[1] >= most);
  const length = pieces.lengths.slice(0, last).reduce((a, b) => a + b, 0);
  const part = area.value.slice(0, length), [sentences] = part.match(/^[^]*(?<!\b(?:Mrs?|Dr|St))[.!?\n]/) ?? [""];
  return (sentences.length > length / 2 ? sentences : part.replace(/\S*$/, "")).trim();
}

let pressedAt = -TWICE_MS;
twice.addEventListener("click", ({ timeStamp }) => {
  const isSecond = timeStamp - pressedAt < TWICE_MS; // of a double click
  pressedAt = timeStamp;
  if (isSecond) return null;
  if (editor.isOwn() ? !result.halves : !halfOf(written())) return sayTwice();
  return forgets ? remember() : forget();
});

async function sayTwice() {
  const said = saidOnce();
  if (!said) return;
  const isPart = said !== area.value.trim();
  const once = said.replace(/[\p{L}\p{N}]$/u, "$&."); // else the next beginning is what surprises
  setText(`${once} ${once}`);
  Object.assign(state, { window: null, stride: null, context: "" });
  const part = isPart ? "The beginning of your text, twice: a window holds no more. " : "";
  const stop = once !== said ? "A full stop stands between. " : "";
  if (await score()) say(`${part}${stop}${says.textContent}`);
}

/* Draw the window so short that the first time falls out of it, and score again. */
async function forget() {
  if (!result.halves) return null; // it is not scored yet
  const { pieces, segments, bits, before } = result.text, half = before + halfOf(written()), text = area.value;
  let at = 0;
  const first = pieces.lengths.findIndex((length, n) => (at += length) > half + 1 && segments[n]);
  const window = Math.max(2, segments[first]?.[0] ?? 0);
  editor.showWindow(true);
  await shrinkWindow(bits.length, window, text);
  if (area.value !== text) return editor.showWindow(false); // another text has its own window
  Object.assign(state, { window, stride: Math.max(1, Math.floor(window / 16)) });
  return score();
}

function remember() {
  Object.assign(state, { window: null, stride: null });
  editor.showWindow(false);
  return score();
}

async function shrinkWindow(length, window, text) {
  if (still()) return;
  const frames = 24;
  for (let frame = 1; frame <= frames && area.value === text; frame++) {
    const from = Math.round(((length - window) * frame) / frames);
    editor.preview = Object.assign([from, Math.max(from, length - 1), length, 0], { window });
    editor.laid.restyleAll();
    editor.place();
    await new Promise((go) => setTimeout(go, 40));
  }
}

byId("play").addEventListener("click", () => {
  const isLast = editor.now >= result.text.windows.length - 1;
  editor.play(isLast ? 0 : editor.now);
});

/* One glide over the first text that is the visitor's and has several windows, from the second on. */
function glide() {
  const { windows, slides } = result.text;
  if (hasGlided || still() || windows.length < 2 || !slides) return;
  hasGlided = true;
  editor.play(1, clamp(5000 / windows.length, 150, 900), () => {
    editor.showWindow(false);
    area.scrollTop = 0;
    say("The band was its window, all that the model sees; what lay before it was forgotten.");
  });
}

/* --- other texts --- */

const sample = byId("sample"), file = byId("file"), yours = new Option("Your own words", "typed");
sample.append(new Option("More texts", ""));
for (const [path, name] of Object.entries(PAGE.samples)) sample.append(new Option(name, path));
sample.append(new Option("A file of yours …", "file"), yours);
yours.hidden = yours.disabled = true;
sample.addEventListener("change", () => {
  if (sample.value !== "file") return takeSample(sample.value);
  file.click();
  sample.value = "";
});
async function takeSample(path) {
  if (!path) return;
  const text = path === "typed" ? typed : await (await fetch(`samples/${path}`)).text();
  setText(text, HINT, typed || first); // from several samples one comes back to one's own words
  showSample(path);
}
byId("questions").addEventListener("click", ({ target }) => takeSample(target.dataset.sample));
file.addEventListener("change", () => { if (file.files[0]) readFile(file.files[0]); file.value = ""; });
for (const type of ["dragover", "drop"]) {
  stage.addEventListener(type, (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    if (type === "drop") readFile(event.dataTransfer.files[0]);
  });
}

async function readFile(chosen) {
  const bytes = new Uint8Array(await chosen.arrayBuffer());
  const kind = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : "utf-8";
  let text;
  try {
    text = new TextDecoder(kind, { fatal: true }).decode(bytes);
  } catch {
    return say("That file is not plain text. Save it as a text file (.txt) in UTF-8.");
  }
  if (text.length > PAGE.limits.characters) {
    return say(`That file has ${fmt(text.length)} characters; this page takes ${fmt(PAGE.limits.characters)}.`);
  }
  const ends = text.includes("\r") ? " Its line ends (\\r\\n) became \\n, as a text box has them." : "";
  hasArrived = true;
  return setText(text, `${chosen.name} is here.${ends}`);
}

/* --- questions --- */

class Question {
  constructor(id, known) {
    this.fold = byId(id);
    this.view = this.fold.querySelector(".view");
    this.known = known;
    this.note = make("p", "quiet");
    this.shown = make("div");
    this.view.append(this.note, this.shown);
    this.line = new Line(id, busyIn(this.note));
    this.fold.addEventListener("toggle", () => (this.fold.open ? this.ask() : this.line.stop()));
  }

  async ask() {
    const asked = { ...request(), other: byId("other").value }, key = JSON.stringify(asked);
    if (!this.fold.open || key === this.key || !asked.text.trim()) return;
    this.key = null;
    this.shown.classList.add("old");
    if (this.text !== asked.text) this.shown.replaceChildren(make("p", "", this.known()));
    this.text = asked.text;
    const answer = await this.line.ask(asked);
    if (!answer) return;
    this.key = key;
    this.shown.classList.remove("old");
    this.shown.innerHTML = answer.html;
    for (const table of this.shown.querySelectorAll(".ps-table")) {
      if (table.scrollWidth > table.clientWidth) table.tabIndex = 0; // the arrow keys scroll it
    }
    for (const view of this.shown.querySelectorAll("[data-view]")) {
      revive(view);
      compareView(view, JSON.parse(view.dataset.payload));
    }
    if (!matchMedia("(pointer: coarse)").matches) return;
    for (const hint of this.shown.querySelectorAll(".ps-hint")) {
      hint.textContent = hint.textContent.replace("Point at", "Tap");
    }
  }
}

const numberNow = () => `${number(result.perplexity)} (${result.recipe})`;
const questions = [
  new Question("memory", () => `With all of its window, the perplexity is ${numberNow()}.`),
  new Question("tools", () => `Your number is ${numberNow()}. The other tools are asked.`),
  new Question("models", () => `The model of the page has ${numberNow()}.`),
];
const askOpenQuestions = () => questions.forEach((question) => question.ask());
byId("other").value = PAGE.other;
byId("other").addEventListener("change", askOpenQuestions);

/* A row of the tools' table: its settings become those of the page. */
byId("tools").addEventListener("click", ({ target }) => {
  const row = target.closest("button")?.closest("[data-protocol]");
  if (!row) return;
  const { protocol, window, stride } = row.dataset;
  choose({ protocol, window: Number(window), stride: Number(stride) || null, start: null });
  scrollTo({ top: 0, behavior: still() ? "auto" : "smooth" });
});

/* Mark the rows of the tools that give a number as it is printed elsewhere, whichever average it is. */
function markRead(field) {
  const view = field.closest(".ps-view"), written = field.value.trim().replace(",", ".");
  const isNumber = /^\d+(\.\d*)?$/.test(written) && Number(written) > 0, read = Number(written);
  const halfDigit = 0.5 / 10 ** (written.split(".")[1] ?? "").length;
  const values = [...view.querySelectorAll("[data-values]")].flatMap((tool) =>
    Object.entries(JSON.parse(tool.dataset.values)).map(([name, value]) => ({ tool, name, value })));
  const fits = values.filter(({ value }) => isNumber && read - halfDigit <= value && value < read + halfDigit);
  for (const row of view.querySelectorAll(".ps-group")) {
    row.classList.toggle("ps-fits", fits.some(({ tool }) => row.contains(tool)));
  }
  const tell = (group) => {
    const [{ name, value }] = group, tools = new Set(group.map(({ tool }) => tool.dataset.protocol));
    return `the ${name.replaceAll("_", " ")} of ${[...tools].join(", ")}, ${number(value)}`;
  };
  const alike = {}, told = new Set(); // one average of a tool may be another one too
  for (const one of fits) {
    const known = `${one.tool.dataset.protocol} ${number(one.value)}`;
    if (!told.has(known)) (alike[`${one.name} ${number(one.value)}`] ??= []).push(one);
    told.add(known);
  }
  const far = ({ value }) => Math.abs(Math.log(value / read));
  const nearest = isNumber && values.reduce((a, b) => (far(b) < far(a) ? b : a));
  view.querySelector(".ps-reading").textContent = !written ? ""
    : !isNumber ? `Write it as it is printed, ${field.placeholder}.`
    : fits.length ? `It is ${Object.values(alike).map(tell).join("; ")}. That may be chance.`
    : `No row gives it. The nearest is ${tell([nearest])}.`;
}
document.addEventListener("input", ({ target }) => {
  if (target.matches(".ps-read input")) markRead(target);
});

/* --- for researchers --- */

for (const name of PAGE.models) byId("known-models").append(new Option(name));
for (const name of Object.keys(PAGE.protocols)) byId("protocol").append(new Option(name));
for (const name of PAGE.starts) byId("start").append(new Option(name));
for (const [name, [words]] of Object.entries(COLOURS)) byId("colours").append(new Option(words, name));
byId("colours").addEventListener("change", ({ target }) => {
  editor.recolour(target.value);
  drawLegend();
});
for (const name of SETTINGS) {
  byId(name).addEventListener("change", ({ target }) => {
    const value = target.value.trim();
    if (!target.validity.valid) return markWrong(target, wrongNumber(target));
    markWrong(target, "");
    asking = target;
    if (name === "model") Object.assign(state, { window: null, stride: null });
    if (name === "protocol") Object.assign(state, { stride: null, start: null });
    if (!["window", "stride"].includes(name)) return choose({ [name]: value || null });
    return choose({ [name]: Number(value) });
  });
  const wrong = make("p", "alert");
  wrong.id = `${name}-wrong`;
  wrong.setAttribute("role", "alert");
  byId("wrong").append(wrong);
}

/* Say below the fields what is wrong with one, "" for nothing. */
function markWrong(field, words) {
  byId(`${field.id}-wrong`).textContent = words;
  for (const [name, value] of [["aria-invalid", "true"], ["aria-describedby", `${field.id}-wrong`]]) {
    if (words) field.setAttribute(name, value);
    else field.removeAttribute(name);
  }
}
const wrongNumber = ({ id, min, max }) => `The ${id} must be a whole number from ${min} to ${fmt(Number(max))}. ` +
  `The number that is shown is still of ${fmt(result.settings[id])}.`;
byId("context").addEventListener("input", ({ target }) => choose({ context: target.value }));

function showLab({ settings, recipe, numbers, notes }) {
  const protocol = state.protocol ?? "sliding", known = PAGE.protocols[protocol];
  const values = { ...settings, protocol, start: state.start ?? PAGE.starts[0] };
  byId("window").max = settings.longest;
  byId("stride").max = settings.window;
  byId("stride").disabled = !known.stride;
  asking = null;
  for (const name of SETTINGS) {
    const field = byId(name), isTyped = document.activeElement === field && field.value !== field.dataset.shown;
    if (!isTyped) field.value = field.dataset.shown = values[name] ?? "";
    if (field.validity.valid) markWrong(field, "");
  }
  byId("idea").textContent = known.idea;
  byId("recipe").textContent = recipe;
  byId("numbers").className = "";
  byId("numbers").replaceChildren(...numbers.map(([name, value, words]) => {
    const row = make("div");
    row.append(make("dt", "", name), make("dd", "", value), make("dd", "quiet", words));
    return row;
  }));
  byId("notes").replaceChildren(...notes.map((note) => make("p", "quiet", note)));
  byId("citation").replaceChildren();
}

/* --- the address, and a reload --- */

const base64 = (bytes) => btoa(String.fromCharCode(...bytes))
  .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const through = async (bytes, stream) =>
  new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
const pack = async (text) =>
  base64(await through(new TextEncoder().encode(text), new CompressionStream("deflate-raw")));
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (sign) => sign.charCodeAt(0));
  return new TextDecoder("utf-8", { fatal: true }).decode(await through(bytes, new DecompressionStream("deflate-raw")));
}

const MOST_CHARACTERS = 4096; // browsers and messengers cut longer links
async function address() {
  const to = new URL(location.href);
  for (const name of SETTINGS) {
    to.searchParams.delete(name);
    if (state[name] && state[name] !== PAGE.models[0]) to.searchParams.set(name, state[name]);
  }
  to.hash = `text=${await pack(area.value)}${state.context ? `&context=${await pack(state.context)}` : ""}`;
  if (to.href.length > MOST_CHARACTERS) to.hash = "";
  return to.href;
}
async function followAddress() {
  const to = await address();
  if (isAsked) history.replaceState({ ...history.state, ...request(), text: area.value, sample: shown }, "", to);
}

/* A step of the browser's history: another text, or a dialog. */
function pushStep(step) {
  history.replaceState({ ...history.state, ...request(), text: area.value, sample: shown }, "");
  history.pushState(step, "");
}
addEventListener("popstate", ({ state: kept }) => {
  if (!kept) return; // another link was put into the address: it is loaded
  document.querySelector("dialog")?.close();
  // A duel that was closed is not opened again by a reload.
  if (readDuelLink()) history.replaceState(kept, "", location.pathname + location.search);
  const { text, dialog, sample: path, ...settings } = kept;
  if (text === undefined || text === area.value) return;
  endLesson();
  Object.assign(state, settings);
  putText(text);
  showSample(path);
  back.hidden = true;
  byId("context").value = state.context;
});
addEventListener("hashchange", () => {
  if (history.state) return;
  try { sessionStorage.removeItem(KEPT); } catch { /* nothing was kept */ }
  location.reload();
});

function keep() {
  const kept = JSON.stringify({ ...state, text: area.value });
  try { sessionStorage.setItem(KEPT, kept); } catch { /* then a reload begins anew */ }
}
function readKept() {
  const isBack = performance.getEntriesByType("navigation")[0]?.type !== "navigate"; // or a reload
  try { return isBack ? JSON.parse(sessionStorage.getItem(KEPT)) : null; } catch { return null; }
}

/* Read text and settings from the address, or from before a reload; return whether there were any. */
async function arrive() {
  const query = new URLSearchParams(location.search), behind = new URLSearchParams(location.hash.slice(1));
  const kept = readKept() ?? {};
  let text = kept.text;
  for (const name of SETTINGS) {
    const value = query.get(name);
    if (value) state[name] = ["window", "stride"].includes(name) ? Math.trunc(Number(value)) || null : value;
    if (kept[name]) state[name] = kept[name];
  }
  try {
    text ??= behind.get("text") && (await unpack(behind.get("text")));
    state.context = kept.context ?? (behind.get("context") ? await unpack(behind.get("context")) : "");
  } catch {
    say("The text in the link is broken. Copy the whole link.");
  }
  byId("context").value = state.context;
  area.value = first = text ?? area.value;
  if (text && text !== kept.text) say(`Somebody sent you this text. ${HINT}`);
  return (text ?? null) !== null || SETTINGS.some((name) => query.get(name));
}

/* --- light and dark, and paper --- */

const dark = matchMedia("(prefers-color-scheme: dark)");
function wear() {
  const theme = new URLSearchParams(location.search).get("__theme");
  document.body.classList.toggle("dark", theme ? theme === "dark" : dark.matches);
}
dark.addEventListener("change", wear);
addEventListener("beforeprint", () => { document.body.classList.remove("dark"); editor.laid.drawAll(); });
addEventListener("afterprint", wear);
addEventListener("resize", () => drawScale(result));

async function begin() {
  wear();
  showScore(PAGE.opening);
  drawLegend();
  say(HINT);
  if (await arrive()) {
    byId("answer").className = "awaited"; // the number that came with the page is of another text
    byId("numbers").replaceChildren();
    byId("recipe").textContent = "";
    for (const name of SETTINGS) byId(name).value = state[name] ?? byId(name).value;
    editor.lay();
    isAsked = true;
    keep();
    await score();
  }
  document.documentElement.dataset.ready = "yes";
}

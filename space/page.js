/* What happens between the parts: results that are out of date, and what a change has changed. */
const SAME_CHANGE_MS = 2500; // results that follow each other faster belong to one drag of a slider
const SETTINGS = ["model", "window", "stride", "start", "protocol", "compare", "other"]; // of an address
const COMPARISONS = { "Other models": "models", "Other strides": "strides", "Other tools": "tools" }; // by the name of the tab
let request = null, before = null, blank = false; // blank: no text but spaces

/* Texts and settings outlive a reload of the page, in this tab alone; some browsers allow a page within another none. */
const KEPT = "perplexity-sliding";
let isPressed = false; // Score, while the server was gone
let isLeaving = false; // for another link: what still arrives here belongs to neither the tab nor its address
function keep(text, context, values) {
  if (isLeaving) return;
  const settings = Object.fromEntries(values.map((value, n) => [SETTINGS[n], value]).filter(([, value]) => value || value === 0));
  try { sessionStorage.setItem(KEPT, JSON.stringify({ text, context, settings, pressed: isPressed && gone.isConnected })); } catch { /* then they don't */ }
}
function kept() {
  const reloaded = performance.getEntriesByType("navigation")[0]?.type === "reload";
  try { return (reloaded && sessionStorage.getItem(KEPT)) || ""; } catch { return ""; }
}
window.perplexityKept = kept();
/* A link that is put into the address bar here changes only what is behind the #, which loads nothing. */
addEventListener("hashchange", ({ newURL }) => {
  isLeaving = true;
  if (location.href !== newURL) history.replaceState(history.state, "", newURL); // a result came since
  try { sessionStorage.removeItem(KEPT); } catch { /* nothing was kept */ }
  location.reload();
});

/* Adler-32 of a text in UTF-8, as `mark` in settings.py has it: enough to see that a text changed. */
function digest(text) {
  let a = 1, b = 0;
  for (const byte of new TextEncoder().encode(text)) { a = (a + byte) % 65521; b = (b + a) % 65521; }
  return b * 65536 + a;
}

window.perplexityMark = digest;

const NOTE_MS = 1500; // the delay of its animation
const OUT_OF_DATE = "These results are out of date. Press Score to update them.", NO_TEXT = "No text is there to score: write or paste one, or choose a sample.";
const ON_ITS_WAY = "These results are out of date: new ones are being computed.", UNSCORED = "This text is not scored yet. Press Score.";
// What is scored by itself shows its progress, and no Stop.
const whyStale = () => blank ? NO_TEXT : document.querySelector("#stop:not(:disabled), #status progress") ? ON_ITS_WAY : document.querySelector(".ps-other-text") ? UNSCORED : OUT_OF_DATE;
function staleNote() {
  const note = make("p", "ps-stale-note");
  note.setAttribute("role", "status");
  // With the fading in: said at every pause of typing, it would talk over it.  By then the next result may
  // have made the paragraph one of its own, without this class.
  setTimeout(() => { if (note.matches(".ps-stale-note")) note.textContent = whyStale(); }, NOTE_MS);
  return note;
}

/* Dim every result that is not of the present text and settings, and say so once in its tab. */
function compareWithRequest() {
  if (!request) return;
  const noted = new Set(); // tabs
  for (const view of document.querySelectorAll("[data-of]")) {
    const of = JSON.parse(view.dataset.of), stale = of.some((value, n) => value !== null && value !== request[n]);
    const note = view.querySelector(":scope > .ps-stale-note"), tab = view.closest("[role=tabpanel]"), isFirst = !noted.has(tab);
    view.classList.toggle("ps-stale", stale);
    view.classList.toggle("ps-other-text", of[0] !== request[0]);
    if (stale) noted.add(tab);
    if (stale && isFirst && !note) view.prepend(staleNote());
    if (!stale || !isFirst) note?.remove();
    else if (note?.textContent && note.textContent !== whyStale()) note.textContent = whyStale();
  }
}

/* The page's components call this with their values. */
window.perplexityAsked = (text, ...settings) => {
  const context = settings.pop();
  const whole = settings.map((value) => typeof value === "number" ? Math.trunc(value) : value?.trim()); // as it is scored
  request = [digest(text ?? ""), ...whole, digest(context ?? "")];
  blank = !text?.trim();
  keep(text, context, whole);
  compareWithRequest();
};

/* The tab that is open: its name, what it shows, and the first view there that may be old. */
function openTab() {
  const tab = document.querySelector("#results [role=tab][aria-selected=true]"), panel = [...document.querySelectorAll("#results [role=tabpanel]")].find((one) => one.checkVisibility());
  return { name: tab?.textContent.trim(), panel, view: panel?.querySelector("[data-of]") };
}
window.perplexityShown = () => { const { name, view } = openTab(); return [COMPARISONS[name] ?? "score", view?.dataset.of ?? ""]; };

/* A link may open a comparison: once, when its text is scored. */
let linked = true;
window.perplexityOpen = (comparison) => {
  const tab = [...document.querySelectorAll("#results [role=tab]")].find((one) => COMPARISONS[one.textContent.trim()] === comparison);
  if (linked && comparison) tab?.click();
  linked = false;
};

/* The address bar follows the results: the score's, or those of the comparison that is open. */
let asked = false;
function followShown() {
  const { name, panel, view } = openTab(), address = panel?.querySelector("[data-address]")?.dataset.address;
  if (name in COMPARISONS) asked = true;
  if (asked && address && !view?.matches(".ps-stale")) follow(address);
}
document.addEventListener("click", ({ target }) => { if (target.closest?.("[role=tab]")) setTimeout(followShown, 100); });
function follow(address) {
  if (isLeaving) return;
  const from = new URL(address, location.href), to = new URL(location.href);
  for (const name of SETTINGS) to.searchParams.delete(name);
  for (const [name, value] of from.searchParams) to.searchParams.set(name, value);
  to.hash = from.hash;
  if (to.href !== location.href) history.replaceState(history.state, "", to);
}

/* Beside a number: what it was before the last change of settings, and at what cost. */
function cardView(view, data) {
  const time = Date.now(), change = view.querySelector(".ps-change");
  const earlier = before && time - before.time < SAME_CHANGE_MS ? before.earlier ?? before : before;
  asked ||= before !== null; // the first result is there before anything is asked
  before = { ...data, time, earlier };
  if (!earlier || earlier.text !== data.text || String(earlier.recipe) === String(data.recipe) || !change) return;
  const share = 100 * (data.perplexity / earlier.perplexity - 1), work = data.read / earlier.read;
  const same = number(earlier.perplexity) === number(data.perplexity), small = Math.abs(share) < 0.05;
  const changed = same ? "unchanged" : small ? "less than 0.1 % apart" : `${share < 0 ? "−" : "+"}${Math.abs(share).toFixed(1)} %`;
  const parts = [`${number(earlier.perplexity)} → ${number(data.perplexity)}, ${changed}`];
  if (earlier.model === data.model) parts.push(Math.abs(work - 1) < 0.05 ? "the same work" : `${work.toPrecision(2)} × the work`);
  if (earlier.scored !== data.scored) parts.push(`not comparable: ${tokens(data.scored)} scored instead of ${fmt(earlier.scored)}`);
  change.textContent = parts.join(", ");
}

/* A server that does not answer: gradio's words of it go after some seconds, and nothing else would say why
   Score does nothing. */
const GONE = "The server does not answer. What you wrote is still here: copy it before you close the page, or press Score to try again.";
const gone = make("p", "ps-view ps-gone-note"), plainFetch = window.fetch.bind(window);
gone.setAttribute("role", "alert");
function tellGone() {
  gone.textContent = `${GONE} Last tried at ${new Date().toLocaleTimeString("en-GB")}.`;
  if (!gone.isConnected) document.body.append(gone);
}
window.fetch = async (resource, options) => {
  try {
    const response = await plainFetch(resource, options);
    if (new URL(response.url || location.href).origin === location.origin) gone.remove();
    return response;
  } catch (error) {
    if (error.name !== "AbortError") tellGone();
    throw error;
  }
};

/* Once a server is gone, gradio tells of no change and no press, and when it is back, loads the page anew. */
function tellShown() {
  if (!gone.isConnected || (!request && window.perplexityKept)) return; // else what was kept is not back yet
  const valueOf = (selector) => document.querySelector(selector)?.value, sizeOf = (name) => fieldOf(name) ? Number(fieldOf(name).value) : null;
  const [, model, , , start] = request ?? JSON.parse(document.querySelector(".ps-card").dataset.of);
  window.perplexityAsked(valueOf("#text textarea"), model, sizeOf("window"), sizeOf("stride"), valueOf("#settings input[type=radio]:checked") ?? start,
    valueOf("#settings input[aria-label=Protocol]"), valueOf("#settings textarea"));
}
for (const type of ["input", "focusout"]) document.addEventListener(type, () => setTimeout(tellShown));
document.addEventListener("click", ({ target }) => {
  if (!gone.isConnected || !target.closest?.("#score")) return;
  isPressed = true;
  tellShown();
}, true);

/* Gradio's tabs and its accordion, for a keyboard and a screen reader. */
document.addEventListener("keydown", (event) => {
  const tabs = [...event.target.closest?.("[role=tablist]")?.querySelectorAll("[role=tab]") ?? []], at = tabs.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  tabs.at(to % tabs.length).focus(); // what measures when it is opened waits for Enter
});
function tellOpen() {
  for (const button of document.querySelectorAll("button.label-wrap")) button.setAttribute("aria-expanded", button.matches(".open"));
}
document.addEventListener("click", () => setTimeout(tellOpen));

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) document.getElementById("score")?.click();
});

/* Gradio opens a list at every key but Escape: at Tab too, once the field has been left, and at Shift. */
document.addEventListener("keydown", (event) => {
  if (["Tab", "Shift", "Control", "Alt", "Meta"].includes(event.key) && event.target.matches?.("input[role=combobox]")) event.stopPropagation();
}, true);

/* Enter takes the focus away from such a field: in a drawer, the next Tab would begin behind it. */
document.addEventListener("keydown", ({ key, target }) => {
  if (key !== "Enter" || !target.matches?.(".ps-drawer input[role=combobox]")) return;
  setTimeout(() => {
    if (document.activeElement !== document.body) return;
    target.focus();
    target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true })); // which closes the list that opens
  });
});

/* A button that is hidden once it was pressed leaves the focus to the number that it was for. */
let pressed = null;
document.addEventListener("focusin", ({ target }) => { pressed = target.matches("#score, #stop") ? target : null; });
function keepFocus() {
  if (!pressed || document.activeElement !== document.body || (pressed.checkVisibility() && !pressed.disabled)) return;
  const card = document.querySelector(".ps-card");
  pressed = null;
  if (!card) return;
  card.tabIndex = -1;
  card.focus({ preventScroll: true });
}
setInterval(keepFocus, 200);

/* A number that was only deleted comes back: gradio puts the lowest there, the dearest of all strides. */
document.addEventListener("focus", ({ target }) => {
  if (target.matches?.("input[type=number]")) target.dataset.before = target.value;
}, true);
document.addEventListener("blur", ({ target }) => {
  if (!target.matches?.("input[type=number]") || target.value) return;
  target.value = target.dataset.before;
  target.dispatchEvent(new Event("input", { bubbles: true }));
}, true);

/* A number that cannot be used is replaced by the nearest that can, and a sentence says so. */
const corrected = make("p", "ps-view ps-corrected");
corrected.setAttribute("role", "status");
document.addEventListener("change", ({ target }) => {
  if (!target.matches?.("#sizes input[type=number]") || !target.value) return;
  const typed = Number(target.value), name = target.closest("#window") ? "window" : "stride", low = Number(target.min);
  const high = Number(name === "window" ? target.max : fieldOf("window").value);
  const used = clamp(Math.trunc(typed), low, high), out = typed < low || typed > high;
  if (used === typed) return corrected.remove();
  corrected.textContent = `The ${name} is ${out ? `between ${fmt(low)} and ${tokens(high)}` : "a whole number of tokens"}: ${typed.toLocaleString("en")} became ${fmt(used)}.`;
  document.getElementById("sizes").after(corrected);
  target.value = used;
  target.dispatchEvent(new Event("input", { bubbles: true }));
}, true);

/* Browsers give the focus back to what opened the first of several cards only. */
document.addEventListener("toggle", ({ newState, target }) => {
  const focused = document.activeElement;
  if (newState !== "closed" || (focused !== document.body && focused.checkVisibility())) return;
  document.querySelector(`[popovertarget="${target.id}"]:not([popovertargetaction=hide])`)?.focus({ preventScroll: true });
}, true);

/* What is folded open stays open with the next result. */
const unfolded = {};
document.addEventListener("toggle", ({ target }) => { if (target.dataset?.keep) unfolded[target.dataset.keep] = target.open; }, true);

/* What the first screen is made of; gradio draws each as soon as its own script is there. */
const FIRST_SCREEN = [".ps-intro", "#samples input", "#upload", "#model input", "#open-settings button", ".ps-mirror [data-n]", ".ps-card", "#window input", "#stride input", "#score", "#status .ps-status"];
const LATEST_MS = 30_000; // if a part never comes, those that did are shown
const root = document.documentElement;
function showWhole() { root.classList.add("ps-whole"); }
setTimeout(showWhole, LATEST_MS);

const VIEWS = { text: editorView, compare: compareView, gain: gainView, card: cardView, share: shareView };

function wake() {
  let news = false;
  keepStage();
  for (const view of document.querySelectorAll("[data-view]:not([data-ready])")) {
    if (view.dataset.view === "text" && drawn?.isDragged()) continue; // an answer to where a handle was: it comes when the handle is let go
    view.dataset.ready = "yes";
    news = true;
    revive(view);
    VIEWS[view.dataset.view](view, JSON.parse(view.dataset.payload));
  }
  for (const fold of document.querySelectorAll("details[data-keep]:not([data-kept])")) { fold.dataset.kept = "yes"; fold.open = Boolean(unfolded[fold.dataset.keep]); }
  for (const drawer of document.querySelectorAll(".ps-drawer:not(.ps-open)")) {
    drawer.inert = true;
    drawer.setAttribute("role", "dialog");
    drawer.setAttribute("aria-label", drawer.querySelector("h2")?.textContent ?? "");
  }
  for (const button of document.querySelectorAll("[data-open]:not([aria-haspopup])")) {
    button.setAttribute("aria-haspopup", "dialog");
    if (button.dataset.open !== "game") button.setAttribute("aria-expanded", "false");
  }
  for (const box of document.querySelectorAll("#share textarea:not([aria-label])")) // else called "Copy"
    box.setAttribute("aria-label", box.closest("label")?.querySelector("[data-testid=block-info]")?.textContent.trim() ?? "");
  for (const note of document.querySelectorAll(".ps-stale-note")) if (note.textContent && note.textContent !== whyStale()) note.textContent = whyStale();
  for (const figure of document.querySelectorAll(".ps-chart:not(:has(.ps-save))")) offerChart(figure);
  tellOpen();
  if (news) compareWithRequest();
  followShown();
  if (!root.matches(".ps-whole") && FIRST_SCREEN.every((part) => document.querySelector(part))) showWhole();
}
/* Mark the rows of the tools that give a number as it is printed elsewhere, whichever of their averages it is. */
function markRead(field) {
  const view = field.closest(".ps-view"), written = field.value.trim().replace(",", ".");
  const isNumber = /^\d+(\.\d*)?$/.test(written) && Number(written) > 0;
  const half = 0.5 / 10 ** (written.split(".")[1] ?? "").length;
  const values = [...view.querySelectorAll("[data-values]")].flatMap((tool) =>
    Object.entries(JSON.parse(tool.dataset.values)).map(([name, value]) => ({ tool, name, value })));
  const fits = isNumber ? values.filter(({ value }) => Number(written) - half <= value && value < Number(written) + half) : [];
  for (const row of view.querySelectorAll(".ps-group")) row.classList.toggle("ps-fits", fits.some(({ tool }) => row.contains(tool)));
  view.querySelector(".ps-reading").textContent = !written ? "" : !isNumber ? "Write it as it is printed, such as 29.41."
    : fits.length ? `${fits.map(readAs).join("; ")}. ${byChance(Number(written), half, values)}` : nothingGives(written, values);
}

const readAs = ({ tool, name, value }) => `${tool.dataset.protocol} gives it: ${name.replaceAll("_", " ")} ${value.toFixed(4)}`;
const distance = (number) => ({ value }) => Math.abs(Math.log(value / number));

function byChance(number, half, values) {
  const near = new Set(values.filter((one) => distance(number)(one) < Math.log(1.1)).map(({ value }) => value.toPrecision(8)));
  const expected = near.size * Math.log((number + half) / (number - half)) / (2 * Math.log(1.1));
  return `By chance, ${expected.toPrecision(2)} of the numbers here would round to it.`;
}

function nothingGives(written, values) {
  const { tool, name, value } = values.reduce((a, b) => distance(written)(b) < distance(written)(a) ? b : a);
  return `No row gives it. The nearest is the ${name.replaceAll("_", " ")} of ${tool.dataset.protocol}, ${value.toFixed(4)}. score.py FILE --find ${written} tries other windows, strides and layouts too.`;
}

document.addEventListener("input", ({ target }) => { if (target.matches?.(".ps-read input")) markRead(target); });

new MutationObserver(wake).observe(root, { childList: true, subtree: true, attributeFilter: ["disabled"] }); // of Stop, which a note depends on
wake();

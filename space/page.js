/* What happens between the parts: results that are out of date, and what a change has changed. */
const SAME_CHANGE_MS = 2500; // results that follow each other faster belong to one drag of a slider
const SETTINGS = ["model", "window", "stride", "start", "protocol"]; // of an address
let request = null, before = null;

/* Texts outlive a reload of the page, in this tab alone; some browsers allow a page within another none. */
const KEPT = "perplexity-sliding";
function keep(text, context) {
  try { sessionStorage.setItem(KEPT, JSON.stringify({ text, context })); } catch { /* then they don't */ }
}
function kept() {
  const reloaded = performance.getEntriesByType("navigation")[0]?.type === "reload";
  try { return (reloaded && sessionStorage.getItem(KEPT)) || ""; } catch { return ""; }
}
window.perplexityKept = kept();

/* Adler-32 of a text in UTF-8, as `mark` in settings.py has it: enough to see that a text changed. */
function digest(text) {
  let a = 1, b = 0;
  for (const byte of new TextEncoder().encode(text)) { a = (a + byte) % 65521; b = (b + a) % 65521; }
  return b * 65536 + a;
}

/* Read aloud where the number stands, and nowhere else. */
function staleNote(aloud) {
  const note = make("p", "ps-stale-note", "This is of the text or the settings before. Press Score for the present ones.");
  if (aloud) note.setAttribute("role", "status");
  return note;
}

/* Dim every result that is not of the present text and settings, and say so. */
function compareWithRequest() {
  if (!request) return;
  for (const view of document.querySelectorAll("[data-of]")) {
    const stale = JSON.parse(view.dataset.of).some((value, n) => value !== null && value !== request[n]);
    const note = view.querySelector(":scope > .ps-stale-note");
    view.classList.toggle("ps-stale", stale);
    if (stale && !note) view.prepend(staleNote(view.matches(".ps-card")));
    if (!stale) note?.remove();
  }
}

/* The page's components call this with their values. */
window.perplexityAsked = (text, ...settings) => {
  const context = settings.pop();
  const whole = settings.map((value) => typeof value === "number" ? Math.trunc(value) : value); // as it is scored
  request = [digest(text ?? ""), ...whole, digest(context ?? "")];
  keep(text, context);
  compareWithRequest();
};

/* The address bar follows the results. */
function follow(address) {
  const from = new URL(address, location.href), to = new URL(location.href);
  for (const name of SETTINGS) to.searchParams.delete(name);
  for (const [name, value] of from.searchParams) to.searchParams.set(name, value);
  to.hash = from.hash;
  history.replaceState(history.state, "", to);
}

/* Beside a number: what it was before the last change of settings, and at what cost. */
function cardView(view, data) {
  const time = Date.now(), change = view.querySelector(".ps-change");
  const earlier = before && time - before.time < SAME_CHANGE_MS ? before.earlier ?? before : before;
  if (before) follow(data.address); // the first result is there before anything is asked
  before = { ...data, time, earlier };
  if (!earlier || earlier.text !== data.text || earlier.recipe === data.recipe || !change) return;
  const share = 100 * (data.perplexity / earlier.perplexity - 1), work = data.read / earlier.read;
  const changed = Math.abs(share) < 0.05 ? "unchanged" : `${share < 0 ? "−" : "+"}${Math.abs(share).toFixed(1)} %`;
  const parts = [`${number(earlier.perplexity)} → ${number(data.perplexity)}, ${changed}`];
  if (earlier.model === data.model) parts.push(Math.abs(work - 1) < 0.05 ? "the same work" : `${work.toPrecision(2)} × the work`);
  if (earlier.scored !== data.scored) parts.push(`but ${fmt(earlier.scored)} → ${tokens(data.scored)} scored: not the same ones`);
  change.textContent = parts.join(", ");
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) document.getElementById("score")?.click();
});

/* Where the results stand below the settings: go and look. */
document.addEventListener("click", (event) => {
  const results = document.getElementById("results");
  if (event.target.closest("#score") && results?.getBoundingClientRect().top > innerHeight - 120)
    document.getElementById("status")?.scrollIntoView({ behavior: still() ? "auto" : "smooth", block: "start" });
});

const VIEWS = { hero: heroView, text: readerView, compare: compareView, gain: gainView, card: cardView, picture: pictureView };

function wake() {
  let news = false;
  for (const view of document.querySelectorAll("[data-view]:not([data-ready])")) {
    view.dataset.ready = "yes";
    news = true;
    VIEWS[view.dataset.view](view, JSON.parse(view.dataset.payload));
  }
  for (const figure of document.querySelectorAll(".ps-chart:not(:has(.ps-save))")) offerChart(figure);
  if (news) compareWithRequest();
}
new MutationObserver(wake).observe(document.documentElement, { childList: true, subtree: true });
wake();

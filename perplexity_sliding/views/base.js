/* What the parts of the page share.  All scripts of the page run in one closure, this one first.
   Every view carries its data in data-payload.  Texts only ever become text nodes. */
const ENDLESS = 1e9;
const EDGES = [1, 3, 6, 10, 15]; // bits between the colours, as in surprise.py
const fmt = (value) => value.toLocaleString("en");
const tokens = (n) => `${fmt(n)} token${n === 1 ? "" : "s"}`;
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));
const colour = (bits) => "b" + EDGES.filter((edge) => bits >= edge).length;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/* Four significant digits, as `number` in markup.py writes them. */
const number = (value) =>
  !isFinite(value) ? "∞" : value >= 1000 ? fmt(Math.round(value)) : value.toPrecision(4);

const visible = (text) =>
  text === "" ? "(nothing)" : text.includes("\uFFFD") ? "(part of a character)" :
    text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");

const percent = (share) =>
  share >= 0.1 ? (100 * share).toFixed(0) + " %" : share >= 0.001 ? (100 * share).toFixed(1) + " %" : "< 0.1 %";

const inWords = new Intl.NumberFormat("en", { notation: "compact", compactDisplay: "long" });
const oneIn = (bits) => {
  if (bits >= ENDLESS) return "the model gave it no chance at all";
  const odds = 2 ** bits;
  return odds < 10 ? `a chance of ${percent(1 / odds)}` :
    odds > 1e15 ? "a chance below 1 in 1,000 trillion" :
    `a chance of 1 in ${odds < 1e6 ? fmt(odds < 1000 ? Math.round(odds) : +odds.toPrecision(3)) : inWords.format(odds)}`;
};

const bitsText = (bits) => bits >= ENDLESS ? "infinite surprise" : `${bits.toFixed(2)} bits`;

const ordinal = (n) => {
  const tens = n % 100, ones = n % 10;
  return fmt(n) + (tens > 10 && tens < 14 ? "th" : ["th", "st", "nd", "rd"][ones] || "th");
};

/* Put an element over a stretch of a line of `length` places. */
function place(element, from, to, length) {
  element.style.left = (100 * from / length).toFixed(3) + "%";
  element.style.width = (100 * Math.max(0, to - from) / length).toFixed(3) + "%";
}

/* Gradio writes a result into the elements of the one before.  What listens to them takes its view's
   `signal`, so that it ends with its own result: else an old text would be shown beside the new one. */
const lives = new WeakMap();
const signal = (view) => ({ signal: lives.get(view).signal });
function revive(view) {
  lives.get(view)?.abort();
  lives.set(view, new AbortController());
}

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/* A text in pieces (text_box.py), pointed at with mouse, finger or arrow keys. */
const CHUNK = 200; // pieces that are made into elements together

/* Show a text whose pieces become elements where they come in sight: all at once, those of a long text
   would stop a browser that serves a screen reader for many seconds.  `look` gives the class of a piece. */
function layPieces(box, { text, lengths, classes }, look) {
  const starts = [0], elements = [], chunks = [];
  for (const length of lengths) starts.push(starts.at(-1) + length);
  const order = lengths.map((_, n) => n).filter((n) => classes[n] !== "-"); // what can be pointed at
  for (let from = 0; from < lengths.length; from += CHUNK)
    chunks.push(make("span", "ps-chunk", text.slice(starts[from], starts[Math.min(from + CHUNK, lengths.length)])));
  for (const chunk of chunks) chunk.setAttribute("role", "presentation"); // else a list box has no options
  box.replaceChildren(...chunks);
  const watch = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) draw(chunks.indexOf(target));
  }, { root: box, rootMargin: "300px" });
  for (const chunk of chunks) watch.observe(chunk);
  if (chunks.length) draw(0);

  function draw(number) {
    watch.unobserve(chunks[number]);
    const nodes = [];
    for (let n = number * CHUNK; n < Math.min((number + 1) * CHUNK, lengths.length); n++) {
      const piece = text.slice(starts[n], starts[n + 1]), shown = words(n);
      if (classes[n] === "-") { nodes.push(piece); continue; }
      const element = elements[n] = make("span", look(n));
      element.setAttribute("role", "option");
      if (!shown.trim()) element.setAttribute("aria-label", visible(shown));
      element.dataset.n = n;
      shown.split("\n").forEach((line, k) => element.append(...(k ? [make("i"), "\n"] : []), line)); // ends of lines are seen
      nodes.push(piece.slice(0, piece.length - shown.length), element); // the word is coloured, not the space before it
    }
    chunks[number].replaceChildren(...nodes);
  }

  function words(n) {
    const piece = text.slice(starts[n], starts[n + 1]);
    return piece.replace(/^ +(?=[^ ])/, "");
  }
  function element(n) {
    if (!elements[n]) draw(Math.floor(n / CHUNK));
    return elements[n];
  }
  function restyle(n) { if (elements[n]) elements[n].className = look(n); }
  const drawAll = () => chunks.forEach((chunk, number) => chunk.firstElementChild || draw(number)); // to be printed whole
  return { order, lengths, words, element, restyle, drawAll, restyleAll: () => elements.forEach((_, n) => restyle(n)) };
}

/* Let a visitor select pieces of a view's text, and tell of them beside it. */
function explorer(view, describe, moved = () => {}, look = null) {
  const box = view.querySelector(".ps-text"), detail = view.querySelector(".ps-detail"), life = signal(view);
  const first = JSON.parse(box.dataset.pieces);
  let shown, selected = -1, held = false;

  function lay(pieces) {
    const classes = pieces.classes.split(" ");
    shown = layPieces(box, { ...first, ...pieces, classes }, look ?? ((n) => classes[n]));
    box.removeAttribute("aria-activedescendant");
    if (pieces.label) box.setAttribute("aria-label", pieces.label);
    selected = -1;
    held = false;
  }
  function select(number) {
    if (selected >= 0) for (const name of ["aria-selected", "id"]) shown.element(selected).removeAttribute(name);
    selected = number;
    const piece = shown.element(number), id = "ps-active-" + (view.id || view.dataset.view);
    const states = { id, "aria-selected": true, "aria-posinset": shown.order.indexOf(number) + 1, "aria-setsize": shown.order.length };
    for (const [name, value] of Object.entries(states)) piece.setAttribute(name, value);
    box.setAttribute("aria-activedescendant", id);
    detail.replaceChildren(...describe(number, shown.words(number)));
    if (held) detail.append(make("p", "ps-note", "Pinned. Click again or press Esc to release."));
    moved(number);
  }
  function point(number) { if (!held && number >= 0 && number !== selected) select(number); }
  function hold(number) {
    held = !(held && number === selected);
    select(number);
  }
  /* Scroll the text, and nothing else, until a piece of it is in sight. */
  function bring(number) {
    const piece = shown.element(number), top = piece.offsetTop - box.scrollTop;
    if (top < 0 || top > box.clientHeight - 40) box.scrollTop = piece.offsetTop - box.clientHeight / 3;
  }
  const under = (event) => Number(event.target.closest("[data-n]")?.dataset.n ?? -1);
  box.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse") point(under(event)); }, life);
  box.addEventListener("click", (event) => { if (under(event) >= 0) hold(under(event)); }, life);
  view.addEventListener("click", (event) => { // a piece that is named elsewhere in the view: the arrow keys go on from it
    const link = event.target.closest("[data-piece]");
    if (!link) return;
    box.focus({ preventScroll: true });
    box.scrollIntoView({ behavior: still() ? "auto" : "smooth", block: "nearest" });
    bring(Number(link.dataset.piece));
    held = true;
    select(Number(link.dataset.piece));
  }, life);
  view.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !held) return;
    held = false;
    select(selected);
  }, life);
  box.addEventListener("keydown", (event) => {
    const { order } = shown, step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? order.length - 1 : step ? order.indexOf(selected) + step : null;
    if (to === null || !order.length) return;
    event.preventDefault();
    held = true;
    select(order[clamp(to, 0, order.length - 1)]);
    bring(selected);
  }, life);
  lay(first);
  return { lay, point, hold, bring, restyle: (n) => shown.restyle(n), restyleAll: () => shown.restyleAll(), drawAll: () => shown.drawAll() };
}

/* The visitor's own text: coloured where it stands and is written, with the window on it.

   Behind the text box lies a mirror with the same lines, whose pieces have colours; the letters of the box
   itself are invisible.  What is typed keeps the colours around it until the next result is there. */
const PLAY_MS = 20000, STEP_MS = [60, 900], MOST_BARS = 300, TALLEST = 16, SEND_MS = 150, TIP_GAP = 6, DOT = 14, DOCKS = { window: 48, stride: 150 }, PENCIL = 56;
let unit = "tokens"; // what a visitor chose outlives a result
const onPhone = () => matchMedia("(max-width: 640px)").matches;
const fieldOf = (name) => document.querySelector(`#${name} input[type=number]`);
let stage = null, drawn = null; // the box with what lies around it; the result that colours it

function makeStage(area) {
  const frame = area.parentElement, part = (name, parent = frame) => { const made = make("div", name); parent.append(made); return made; };
  frame.classList.add("ps-stage");
  const mirror = part("ps-mirror"), over = part("ps-over"), strip = part("ps-strip"), band = make("div", "ps-band");
  const tip = part("ps-view ps-tip", document.body);
  for (const hidden of [mirror, strip]) hidden.setAttribute("aria-hidden", "true");
  tip.setAttribute("role", "status");
  tip.hidden = true;
  area.dir = "auto";
  area.setAttribute("aria-label", "Text"); // its label holds the handles too
  area.spellcheck = false;
  area.setSelectionRange(0, 0); // at its end, the caret would take who comes by Tab away from the window
  mirror.tabIndex = -1; // Chromium has a stop at whatever scrolls
  const handles = {};
  for (const name of ["window", "stride"]) {
    const handle = handles[name] = make("button", `ps-handle ps-handle-${name}`);
    handle.type = "button";
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `Handle of the ${name}, on the text`);
    handle.append(make("span", "", name));
    over.append(handle);
  }
  const begin = make("i", "ps-begin");
  over.append(begin);
  // The mirror follows the box, and leads it only where something else scrolled it, as a search in the page does.
  let followed = 0;
  mirror.addEventListener("scroll", () => { if (Math.abs(mirror.scrollTop - followed) > 1) area.scrollTop = mirror.scrollTop; });
  area.addEventListener("scroll", () => { mirror.scrollTop = area.scrollTop; followed = mirror.scrollTop; drawn?.placed(); });
  area.addEventListener("input", () => { drawn?.release(); drawn?.lay(); });
  area.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") drawn?.point(event.clientX, event.clientY); });
  area.addEventListener("pointerleave", () => drawn?.leave());
  area.addEventListener("click", (event) => { if (!isEdited()) drawn?.hold(event.clientX, event.clientY); });
  area.addEventListener("keyup", ({ key }) => { if (/^(Arrow|Home|End|Page)/.test(key)) drawn?.follow(area.selectionStart); });
  addEventListener("keydown", ({ key }) => { if (key === "Escape" && !tip.hidden) drawn?.release(); });
  new ResizeObserver(() => drawn?.placed()).observe(area);
  frame.append(pencil(area));
  return { area, mirror, band, over, strip, tip, handles, begin };
}

/* On a phone, a tap reads: the keyboard would cover half of the text.  A pencil edits. */
const isEdited = () => onPhone() && stage && !stage.area.readOnly;
function pencil(area) {
  const button = make("button", "ps-pencil");
  button.type = "button";
  const edit = (yes) => {
    area.readOnly = onPhone() && !yes;
    button.textContent = yes ? "✓" : "✎";
    button.setAttribute("aria-label", yes ? "Done" : "Edit the text");
    button.setAttribute("aria-pressed", yes);
  };
  edit(false);
  matchMedia("(max-width: 640px)").addEventListener("change", () => edit(false));
  button.addEventListener("click", (event) => {
    event.preventDefault(); // it stands in the label of the box
    edit(area.readOnly);
    drawn?.release();
    if (area.readOnly) area.blur(); else area.focus();
  });
  return button;
}
/* What is at the bottom of the screen stands above the keyboard. */
function followKeyboard() {
  const keyboard = Math.max(0, innerHeight - visualViewport.height - visualViewport.offsetTop);
  document.documentElement.style.setProperty("--ps-keyboard", `${keyboard}px`);
  drawn?.keepInSight();
}
for (const type of ["resize", "scroll"]) visualViewport.addEventListener(type, followKeyboard);

/* Gradio may give the box another value, or another box. */
function keepStage() {
  const area = document.querySelector("#text textarea");
  if (area && stage?.area !== area) stage = makeStage(area);
  if (area && drawn && drawn.text() !== area.value) drawn.begin(); // another text, which nobody typed
}
setInterval(keepStage, 200);
for (const type of ["scroll", "resize"]) addEventListener(type, () => drawn?.placed(), { passive: true });
/* The handles are where the fields say. */
document.addEventListener("input", ({ target }) => { if (target.matches?.("#window input, #stride input")) setTimeout(() => drawn?.placed()); });

/* Pieces of a scored text laid over what stands in the box now: those before and behind a change stay.
   Gives lengths and classes of what is to be shown, and which piece each of them is, -1 for none. */
function align(pieces, before, now) {
  const { text, lengths } = pieces, classes = pieces.classes.split(" "), scored = text.slice(before);
  let head = 0, tail = 0;
  const most = Math.min(scored.length, now.length);
  while (head < most && scored[head] === now[head]) head++;
  while (tail < most - head && scored.at(-1 - tail) === now.at(-1 - tail)) tail++;
  const shown = { lengths: [], classes: [], ids: [] };
  const add = (length, name, id) => { if (length > 0) { shown.lengths.push(length); shown.classes.push(name); shown.ids.push(id); } };
  let at = -before, reached = 0;
  const behind = scored.length - tail, shift = now.length - scored.length;
  lengths.forEach((length, n) => {
    const from = Math.max(0, at), to = at += length;
    const where = to <= head ? 0 : from >= behind ? shift : null;
    if (where === null || to <= from) return;
    add(from + where - reached, "-", -1);
    add(to - from, classes[n], n);
    reached = to + where;
  });
  add(now.length - reached, "-", -1);
  return { text: now, ...shown };
}

function editorView(view, data) {
  keepStage();
  if (!stage || !document.getElementById("steps")?.querySelector(".ps-says")) return setTimeout(() => view.isConnected && editorView(view, data), 50);
  const { area, mirror, band, over, strip, tip, handles, begin } = stage, life = signal(view);
  const { windows, bits } = data, length = bits.length, tell = { tokens: null };
  const windowOf = new Array(length).fill(-1), pieceOf = new Array(length).fill(-1);
  // A token that several windows score has the columns of the first.
  windows.forEach(([, first, end], n) => { for (let t = first; t < end; t++) if (windowOf[t] < 0) windowOf[t] = n; });
  tell.tokens = teller(data, windowOf);
  const panel = document.getElementById("steps"), controls = panel.querySelector(".ps-steps"), slider = controls.querySelector("input");
  const says = panel.querySelector(".ps-says"), play = controls.querySelector("[data-step=play]");
  slider.max = Math.max(1, windows.length);
  const asTokens = { ...data.pieces, segments: data.segments };
  let shown = asTokens, laid = null, ids = [], placeOf = [], selected = -1, held = false, written = null;
  let now = nearest(drawn?.anchor() ?? 0), preview = null, timer = null, colouring = "surprise", dragged = null;
  drawn?.release();
  drawn?.end();

  /* Colours */
  const ranks = [1, 10, 100, 1000, 10000], widest = Math.max(1, ...data.context.filter((value) => value !== null));
  const COLOURS = {
    surprise: (n) => shown.list[n],
    rank: (n, [first, last]) => "b" + ranks.filter((edge) => Math.max(...data.rank.slice(first, last + 1)) > edge).length,
    context: (n, [first]) => "c" + Math.min(5, Math.floor(6 * data.context[first] / (widest + 1))),
    window: (n, [first]) => "n" + windowOf[first] % 3,
  };
  const span = () => preview ?? windows[now] ?? [0, 0, 0, 0];
  function look(place) {
    const n = ids[place], range = n < 0 ? null : shown.segments[n];
    if (n < 0) return "plain";
    const [from, fresh, end] = span(), own = range && bits.slice(range[0], range[1] + 1);
    const ahead = timer && range && range[0] >= end;
    const name = !range || own.includes(null) ? shown.list[n] : ahead ? "plain" : COLOURS[colouring](n, range);
    if (!range || !isOwn()) return name;
    const part = range[0] < from || range[0] >= end ? "unseen" : range[0] < fresh ? "in-context" : "in-new";
    return `${name} ${part}`;
  }
  function choosePieces(pieces) {
    shown = pieces;
    shown.list = pieces.classes.split(" ");
    pieceOf.fill(-1);
    shown.segments.forEach((range, n) => range && pieceOf.fill(n, range[0], range[1] + 1));
    lay();
  }
  function lay() {
    written = area.value;
    const aligned = align({ ...data.pieces, ...shown }, data.before, written);
    ids = aligned.ids;
    placeOf = [];
    ids.forEach((n, place) => { if (n >= 0) placeOf[n] = place; });
    laid = layPieces(mirror, { ...aligned, text: written + "\u200b", lengths: [...aligned.lengths, 1], classes: [...aligned.classes, "-"] }, look);
    mirror.prepend(band);
    mirror.dir = getComputedStyle(area).direction; // its bar is where the box has its own
    mirror.scrollTop = area.scrollTop;
    selected = -1;
    endWithText();
    placed();
  }
  /* Windows, map and Play are of the text that was scored, and end with it. */
  const own = data.pieces.text.slice(data.before), isOwn = () => written === own;
  function endWithText() {
    if (!isOwn()) stop();
    for (const control of [play, slider]) control.disabled = !isOwn();
    for (const part of [controls, says, strip, over, band]) part.classList.toggle("ps-ended", !isOwn());
  }
  const elementOf = (n) => n >= 0 && placeOf[n] !== undefined ? laid.element(placeOf[n]) : null;

  /* Pointing */
  function under(x, y) {
    const hit = document.elementsFromPoint(x, y).find((element) => element.dataset.n !== undefined && mirror.contains(element));
    return hit ? ids[Number(hit.dataset.n)] : -1;
  }
  /* Between two words, the one that is nearer. */
  function near(x, y) {
    for (const aside of [0, -6, 6, -14, 14, -28, 28]) {
      const n = under(x + aside, y);
      if (n >= 0) return n;
    }
    return -1;
  }
  /* The piece that is nearest to where a handle was dragged, also out of the text or into an empty line: in a
     line above before one below, and to the left before one to the right. */
  function within(x, y) {
    const box = over.getBoundingClientRect(), line = parseFloat(getComputedStyle(mirror).lineHeight) || 20;
    const low = Math.max(box.top, 0) + 4, high = Math.min(box.bottom, innerHeight) - 4, row = clamp(y, low, high), column = clamp(x, box.left + 4, box.right - 4);
    for (let aside = 0; aside < high - low; aside += line / 2) {
      for (const at of [row - aside, row + aside].filter((at) => at >= low && at <= high)) {
        for (let left = column; left > box.left; left -= 10) {
          const n = near(left, at);
          if (n >= 0) return n;
        }
        for (let right = column; right < box.right; right += 10) {
          const n = near(right, at);
          if (n >= 0) return n;
        }
      }
    }
    return -1;
  }
  function select(n, keep = false) {
    const element = elementOf(n);
    if (!element) return;
    elementOf(selected)?.removeAttribute("aria-selected");
    selected = n;
    held = keep;
    element.setAttribute("aria-selected", "true");
    const scores = shown.scores && shown.scores[n];
    tip.replaceChildren(...tell.tokens(laid.words(placeOf[n]), shown.segments[n], scores));
    if (held) tip.append(make("p", "ps-note", onPhone() ? "Tap the word again to close." : "Pinned. Click again or press Esc to release."));
    tip.hidden = false;
    besideWord(element);
  }
  /* A sheet at the bottom of a phone: the word stays in sight above it, whatever the keyboard leaves. */
  function keepInSight() {
    const element = elementOf(selected);
    if (tip.hidden || !element || !onPhone()) return;
    tip.style.left = tip.style.top = "";
    const covered = element.getBoundingClientRect().bottom + TIP_GAP - tip.getBoundingClientRect().top;
    if (covered > 0) scrollBy({ top: covered, behavior: "instant" });
  }
  /* Below the word, or above it where there is more room: nothing of it is ever cut. */
  function besideWord(element) {
    if (onPhone()) return keepInSight();
    const word = element.getClientRects()[0] ?? element.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const below = word.bottom + TIP_GAP + box.height < innerHeight, top = below ? word.bottom + TIP_GAP : word.top - TIP_GAP - box.height;
    tip.style.left = clamp(word.left, 8, Math.max(8, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(8, top) + "px";
  }
  function release() {
    held = false;
    tip.hidden = true;
    elementOf(selected)?.removeAttribute("aria-selected");
    selected = -1;
  }
  function point(x, y) {
    if (held) return;
    const n = under(x, y);
    if (n < 0) return release();
    if (n !== selected) select(n);
  }
  function hold(x, y) {
    const n = under(x, y);
    if (n < 0 || (held && n === selected)) return release();
    select(n, true);
    showWindowOf(n);
  }
  function follow(caret) {
    let at = 0;
    const place = laid.lengths.findIndex((own) => (at += own) > caret);
    if (ids[place] >= 0) select(ids[place], true);
    else release();
  }
  function showWindowOf(n) {
    const range = shown.segments[n];
    if (range && windowOf[range[0]] >= 0) { touch(); stop(); show(windowOf[range[0]]); }
  }
  function bring(n) {
    const element = elementOf(n);
    if (!element) return;
    const top = element.offsetTop - area.scrollTop;
    if (top < 20 || top > area.clientHeight - 60) area.scrollTop = mirror.scrollTop = element.offsetTop - area.clientHeight / 3;
  }

  /* The window on the text, with its two handles */
  const rects = (token) => [...elementOf(pieceOf[clamp(token, 0, length - 1)])?.getClientRects() ?? []];
  /* `docked`: pixels from the right, where a handle waits while its place lies below what box and screen show. */
  function put(element, rect, x, docked = 0) {
    const box = over.getBoundingClientRect(), lowest = Math.min(box.bottom, innerHeight);
    const below = rect && rect.top > lowest - 4, waits = Boolean(below && docked);
    element.hidden = !rect || rect.bottom < box.top + 4 || (below && !docked);
    element.classList.toggle("ps-docked", waits);
    if (element.hidden) return;
    const left = waits ? box.width - docked - (onPhone() ? PENCIL : 0) : x - box.left, top = waits ? Math.max(0, lowest - box.top - rect.height - DOT) : rect.top - box.top;
    element.style.transform = `translate(${left.toFixed(1)}px, ${top.toFixed(1)}px)`;
    element.style.height = `${rect.height}px`;
  }
  function placed() {
    over.style.height = strip.style.height = `${area.clientHeight}px`;
    mirror.style.height = `${area.offsetHeight}px`;
    const [from, , end] = span(), stride = preview?.stride ?? strideNow();
    const isAsScored = !preview && stride === data.stride; // else the field is ahead of the result
    const after = (isAsScored && windows[now + 1]?.[0]) || from + stride - startPlace();
    const left = rects(from)[0], right = rects(end - 1).at(-1), next = rects(after - 1).at(-1);
    put(begin, left, left?.left ?? 0);
    const begins = left && left.top < over.getBoundingClientRect().bottom - 4; // above, or in sight
    put(handles.window, windows.length && data.slides ? right : null, right?.right ?? 0, begins && DOCKS.window);
    put(handles.stride, windows.length > 1 && data.slides ? next : null, next?.right ?? 0, begins && DOCKS.stride);
    for (const [name, value] of [["window", fieldOf("window")?.value], ["stride", stride]]) {
      const handle = handles[name], field = fieldOf(name);
      const most = name === "window" ? field?.max || value : fieldOf("window")?.value;
      for (const [key, told] of [["valuemin", name === "window" ? 2 : 1], ["valuemax", most], ["valuenow", value], ["valuetext", tokens(Number(value))]])
        handle.setAttribute(`aria-${key}`, told);
    }
    drawBand();
    drawStrip();
  }
  /* The window as a band behind the words: what is only read, and what is scored. */
  const RUNS_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/, LETTER = /\p{L}/u;
  function drawBand() {
    const [from, fresh, end] = span();
    band.replaceChildren(...(isOwn() ? [...stretch(from, fresh, "ps-band-context"), ...stretch(fresh, end, "ps-band-new")] : []));
  }
  /* From one token to another: the rest of its first line, whole lines, and the beginning of the last one. */
  function stretch(from, end, name) {
    const first = rects(from)[0], last = rects(end - 1).at(-1);
    if (end <= from || !first || !last) return [];
    const box = mirror.getBoundingClientRect(), looks = getComputedStyle(mirror), line = parseFloat(looks.lineHeight);
    const left = parseFloat(looks.paddingLeft) - 4, right = mirror.clientWidth - parseFloat(looks.paddingRight) + 4;
    const word = laid.words(placeOf[pieceOf[from]]), runsLeft = RUNS_LEFT.test(word) || (!LETTER.test(word) && mirror.dir === "rtl");
    const top = (rect) => rect.top - box.top - mirror.clientTop + mirror.scrollTop - (line - rect.height) / 2, x = (value) => value - box.left - mirror.clientLeft;
    const start = x(first.left) - left < 8 ? left : x(first.left); // at the beginning of a line as those below it
    const piece = (low, high, from, to) => {
      const part = make("i", name);
      Object.assign(part.style, { top: `${low}px`, height: `${high - low}px`, left: `${from}px`, width: `${Math.max(0, to - from)}px` });
      return part;
    };
    const [high, low] = [top(first), top(last)];
    if (low - high < line / 2) return [piece(high, high + line, Math.min(start, x(last.left)), x(Math.max(first.right, last.right)))];
    return [
      piece(high, high + line, runsLeft ? left : start, runsLeft ? x(first.right) : right),
      piece(high + line, low, left, right),
      piece(low, low + line, runsLeft ? x(last.left) : left, runsLeft ? right : x(last.right)),
    ];
  }
  const strideNow = () => Number(fieldOf("stride")?.value || data.stride || 1);
  let sending = null;
  function choose(name, value, wait = 0) {
    clearTimeout(sending);
    sending = setTimeout(() => {
      const field = fieldOf(name);
      if (!field) return;
      if (Number(field.value) === value) return show(now); // back where it was: no result will follow
      field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }, wait);
  }
  /* As `plan_windows` does: a start token before the text takes a place; where no window overlaps the one
     before, each begins with that one's last token. */
  const startPlace = () => data.starts ? 0 : span()[3];
  const widthOf = (size, stride) => size - Number(data.starts) + Number(!data.starts && stride === size);
  const sizeOf = (width) => width + Number(data.starts) - Number(!data.starts && width - 1 <= strideNow());
  /* What a window or a stride would do to the window that is shown: the result follows. */
  function foresee(name, value) {
    const from = span()[0], size = name === "window" ? value : Number(fieldOf("window").value), stride = name === "stride" ? value : Math.min(strideNow(), size);
    const end = Math.min(length, from + widthOf(size, stride) - startPlace()), fresh = now === 0 ? windows[0][1] : Math.max(from, end - stride);
    const before = fresh - from + span()[3];
    preview = Object.assign([from, fresh, end, span()[3]], { stride });
    laid.restyleAll();
    placed();
    touch();
    says.textContent = `Window ${fmt(size)}, stride ${fmt(stride)}: ${tokens(end - fresh)} scored here, the first after ${tokens(before)} of context.`;
  }
  function limits(name) {
    const window = Number(fieldOf("window").value);
    return name === "window" ? [2, Number(fieldOf("window").max) || window] : [1, window - Number(data.starts)];
  }
  for (const [name, handle] of Object.entries(handles)) {
    handle.addEventListener("pointerdown", (event) => { event.preventDefault(); handle.focus(); stop(); handle.setPointerCapture(event.pointerId); dragged = name; release(); }, life);
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const n = within(event.clientX, event.clientY), range = n >= 0 && shown.segments[n];
      if (!range) return;
      const width = range[1] - span()[0] + 1 + startPlace();
      const value = clamp(name === "window" ? sizeOf(width) : width, ...limits(name));
      foresee(name, value);
      choose(name, value, SEND_MS);
    }, life);
    handle.addEventListener("lostpointercapture", () => { dragged = null; wake(); }, life);
    handle.addEventListener("keydown", (event) => {
      const value = Number(handle.getAttribute("aria-valuenow")), [low, high] = limits(name);
      const to = { ArrowRight: value + 1, ArrowUp: value + 1, ArrowLeft: value - 1, ArrowDown: value - 1, PageUp: value + 8, PageDown: value - 8, Home: low, End: high }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      foresee(name, clamp(to, low, high));
      choose(name, clamp(to, low, high), SEND_MS);
    }, life);
  }

  /* Sliding it: what a window reads is said from the first time on that somebody moves it. */
  const touch = () => panel.classList.add("ps-touched");
  function nearest(token) {
    let best = 0;
    windows.forEach(([from], n) => { if (Math.abs(from - token) < Math.abs(windows[best][0] - token)) best = n; });
    return best;
  }
  const sums = [0], counts = [0];
  for (const own of bits) { sums.push(sums.at(-1) + (own ?? 0)); counts.push(counts.at(-1) + (own !== null)); }
  /* Null where the tool averages in another way than over tokens: the last of these would not be its number. */
  const soFar = (end) => data.perplexity === null ? null : end === length ? data.perplexity : 2 ** (sums[end] / Math.max(1, counts[end]));
  function show(window) {
    now = clamp(window, 0, windows.length - 1);
    preview = null;
    laid.restyleAll();
    placed();
    const [from, first, end, start] = windows[now], scored = end - first, before = first - from + start;
    slider.value = now + 1;
    const words = `Window ${fmt(now + 1)} of ${fmt(windows.length)}`;
    slider.setAttribute("aria-valuetext", `${words}: tokens ${fmt(from + 1)} to ${fmt(end)}`);
    const most = before + scored - 1, seen = before === most ? fmt(most) : `${fmt(before)} to ${fmt(most)}`;
    const guessed = end - from === 1 ? "it" : scored === end - from ? `all ${fmt(scored)}` : scored === 1 ? "the last one" : `the last ${fmt(scored)}`;
    const known = soFar(end);
    says.textContent = `${words}: ${start ? "the start marker and " : ""}${tokens(end - from)}. The model guesses ${guessed}, ` +
      `${scored === 1 ? "" : "each "}from the ${seen} before it.${known === null || counts[end] < 20 ? "" : ` Perplexity so far: ${number(known)}.`}`;
    if (timer && known !== null) grow(number(known), counts[end]);
  }
  /* While it plays, number and sentence are of what was read up to there. */
  let grown = null;
  function grow(value, count) {
    const output = document.querySelector(".ps-card .ps-big output"), sentence = document.querySelector(".ps-card .ps-headline > p:last-of-type");
    if (!output || !sentence) return;
    grown ??= { output, sentence, number: output.textContent, words: [...sentence.childNodes] };
    output.textContent = value;
    sentence.textContent = `So far, over ${tokens(count)}. Over all of them, ${grown.number}.`;
  }
  function growBack() {
    if (grown?.output.isConnected) { // else it was of an earlier result
      grown.output.textContent = grown.number;
      grown.sentence.replaceChildren(...grown.words);
    }
    grown = null;
  }
  const step = (by) => { show(now + by); bring(Math.max(0, pieceOf[windows[now][1]])); };
  function stop() {
    if (!timer) return;
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    growBack();
    laid.restyleAll();
  }
  function start() {
    release();
    touch();
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (!view.isConnected || now === windows.length - 1) return stop();
      step(1);
    }, clamp(PLAY_MS / windows.length, ...STEP_MS));
    if (now === windows.length - 1) step(-now); else show(now);
  }
  play.addEventListener("click", () => timer ? stop() : start(), life);
  slider.addEventListener("input", () => { touch(); stop(); step(slider.value - 1 - now); }, life);

  /* The strip: surprise over all of a long text, from top to bottom, and what of it is in sight. */
  const seenPart = make("i", "ps-seen");
  strip.replaceChildren(surpriseStrip(), seenPart);
  function surpriseStrip() {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", `0 0 ${TALLEST} ${length || 1}`);
    svg.setAttribute("preserveAspectRatio", "none");
    const size = Math.max(1, length / MOST_BARS), bars = [];
    for (let from = 0; from < length; from += size) {
      const own = bits.slice(Math.floor(from), Math.max(Math.floor(from) + 1, Math.floor(from + size))).filter((value) => value !== null);
      bars.push(`M0 ${from}h${own.length ? Math.min(TALLEST, own.reduce((a, b) => a + b, 0) / own.length) : 0}v${size}H0z`);
    }
    path.setAttribute("d", bars.join(""));
    svg.append(path);
    return svg;
  }
  function drawStrip() {
    const whole = area.scrollHeight, share = area.clientHeight / whole;
    strip.hidden = share > 0.7;
    seenPart.style.height = `${100 * share}%`;
    seenPart.style.top = `${100 * area.scrollTop / whole}%`;
  }
  function scrollTo({ clientY }) {
    const box = strip.getBoundingClientRect();
    area.scrollTop = (clientY - box.top) / box.height * area.scrollHeight - area.clientHeight / 2;
  }
  strip.addEventListener("pointerdown", (event) => { strip.setPointerCapture(event.pointerId); scrollTo(event); }, life);
  strip.addEventListener("pointermove", (event) => { if (strip.hasPointerCapture(event.pointerId)) scrollTo(event); }, life);
  // It stands in the label of the box: a press would put the focus there, and bring its caret in sight.
  for (const type of ["mousedown", "click"]) strip.addEventListener(type, (event) => event.preventDefault(), life);

  /* Tokens, or words: those are scored when they are first asked for. */
  function chooseUnit(choice) {
    const wanted = document.querySelector("#words input"), pieces = choice === "words" ? data.words : asTokens;
    unit = choice;
    if (wanted.checked !== (choice === "words")) wanted.click();
    if (pieces && pieces !== shown) choosePieces(pieces);
  }
  drawn = {
    lay, placed, point, hold, follow, release, keepInSight, text: () => written,
    isDragged: () => dragged !== null,
    begin: () => { stop(); release(); area.setSelectionRange(0, 0); area.scrollTop = 0; lay(); if (windows.length) show(0); },
    leave: () => { if (!held) release(); }, anchor: () => span()[0],
    end: () => stop(), drawAll: () => laid.drawAll(), data, windowOf,
    reveal: (token) => { const n = pieceOf[token]; area.focus({ preventScroll: true }); bring(n); select(n, true); showWindowOf(n); },
  };
  choosePieces(asTokens);
  for (const choice of view.querySelectorAll("[data-units] input")) {
    choice.addEventListener("change", () => chooseUnit(choice.value), life);
    if (choice.value === "words" && unit === "words" && data.words) { choice.checked = true; chooseUnit("words"); }
  }
  chooseColour(view, (choice) => { colouring = choice; laid.restyleAll(); });
  if (windows.length) show(now);
  life.signal.addEventListener("abort", stop);
}

/* The most surprising word leads to its place in the text. */
document.addEventListener("click", ({ target }) => {
  const word = target.closest?.(".ps-card [data-piece]");
  if (word && drawn) drawn.reveal(drawn.data.segments[word.dataset.piece][0]);
});

/* Paper is white, and shows all of a text. */
let wasDark = false;
addEventListener("beforeprint", () => {
  wasDark = document.body.classList.contains("dark");
  document.body.classList.remove("dark");
  drawn?.drawAll();
});
addEventListener("afterprint", () => document.body.classList.toggle("dark", wasDark));

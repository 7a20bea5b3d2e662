/* The visitor's own text: coloured where it stands and is written, with the model's window on it.

   Behind the text box lies a mirror with the same lines, whose pieces have colours; the letters of the
   box itself are invisible.  What is typed keeps the colours around it until the next result is there. */
const TOLD = 3; // of what it expected, in a line
const STEP_MS = 900, TIP_GAP = 6, LARGE = 90, MIDDLE = 260;
const RUNS_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
const RANKS = [1, 10, 100, 1000, 10000];
const stage = byId("stage"), area = byId("text"), mirror = byId("mirror"), over = byId("over");
const says = byId("says"), tip = byId("tip"), band = make("div", "band");

/* What is scored: a space at the end begins a word that is not there yet. */
const written = () => area.value.replace(/(?<=\S) +$/, "");

const quoted = (piece) =>
  /["“”„«»]/.test(piece) ? `the mark ${piece}` : piece.trim() ? `“${visible(piece)}”` : piece.includes("\n") ? "a new line" : "a space";

/* Pieces of a scored text laid over what stands in the box now: those before and behind a change stay.
   Gives lengths and classes of what is to be shown, and which piece each of them is, -1 for none. */
function align({ text, lengths, classes }, before, now) {
  const names = classes.split(" "), scored = text.slice(before);
  const most = Math.min(scored.length, now.length);
  let head = 0, tail = 0;
  while (head < most && scored[head] === now[head]) head++;
  while (tail < most - head && scored.at(-1 - tail) === now.at(-1 - tail)) tail++;
  const shown = { lengths: [], classes: [], ids: [] };
  const add = (length, name, id) => {
    if (length <= 0) return;
    shown.lengths.push(length);
    shown.classes.push(name);
    shown.ids.push(id);
  };
  let at = -before, reached = 0;
  const behind = scored.length - tail, shift = now.length - scored.length;
  lengths.forEach((length, n) => {
    const from = Math.max(0, at), to = (at += length);
    const where = to <= head ? 0 : from >= behind ? shift : null;
    if (where === null || to <= from) return;
    add(from + where - reached, "-", -1);
    add(to - from, names[n], n);
    reached = to + where;
  });
  add(now.length - reached, "-", -1);
  return { text: now, ...shown };
}

class Editor {
  constructor(choose) {
    this.choose = choose; // called with { window } or { stride } that a handle was brought to
    this.colouring = "surprise";
    this.preview = null;
    this.timer = null;
    this.isShowingWindow = false;
    this.handles = Object.fromEntries(["window", "stride"].map((name) => [name, this.makeHandle(name)]));
    area.addEventListener("scroll", () => { mirror.scrollTop = area.scrollTop; this.place(); });
    area.addEventListener("input", () => this.lay());
    area.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") this.point(event.clientX, event.clientY);
    });
    area.addEventListener("pointerleave", () => { tip.hidden = true; });
    area.addEventListener("click", () => this.tellCaret());
    area.addEventListener("blur", () => {
      this.mark(null);
      if (says.textContent === this.told) say(HINT);
    });
    area.addEventListener("keyup", ({ key }) => {
      if (/^(Arrow|Home|End|Page)/.test(key)) this.tellCaret();
    });
    new ResizeObserver(() => this.place()).observe(mirror);
  }

  /* Show a result: `data` as `text_data` in answers.py has it. */
  show(data, settings) {
    this.stop();
    const from = this.isShowingWindow ? this.span()[0] : 0; // it stays where it was
    Object.assign(this, { data, settings, preview: null });
    this.segments = data.segments;
    this.words = data.segments.map((_, n) => [n, n]); // the first and the last piece of each one's word
    for (const n of data.joins) this.words[n] = Object.assign(this.words[n - 1], { 1: n });
    this.begins = [0];
    for (const own of data.pieces.lengths) this.begins.push(this.begins.at(-1) + own);
    const length = data.bits.length;
    this.windowOf = new Array(length).fill(-1);
    this.pieceOf = new Array(length).fill(-1);
    // A token that several windows score has the columns of the first.
    data.windows.forEach(([, first, end], n) => {
      for (let t = first; t < end; t++) if (this.windowOf[t] < 0) this.windowOf[t] = n;
    });
    this.segments.forEach((range, n) => range && this.pieceOf.fill(n, range[0], range[1] + 1));
    this.tell = teller(data, this.windowOf);
    const next = data.windows.findIndex(([begin]) => begin >= from);
    this.now = next < 0 ? data.windows.length - 1 : next;
    this.lay();
    this.follow();
  }

  lay() {
    const text = area.value;
    stage.dataset.size = text.length <= LARGE ? "large" : text.length <= MIDDLE ? "middle" : "small";
    tip.hidden = true;
    const aligned = align(this.data.pieces, this.data.before, written()), unscored = text.length - written().length;
    this.ids = aligned.ids;
    this.places = [];
    this.ids.forEach((n, place) => { if (n >= 0) this.places[n] = place; });
    const whole = {
      text: text + "\u200b", // holds an empty last line open
      lengths: [...aligned.lengths, unscored + 1],
      classes: [...aligned.classes, "-"],
    };
    this.laid = layPieces(mirror, whole, (place) => this.look(place));
    mirror.prepend(band);
    mirror.dir = getComputedStyle(area).direction;
    mirror.scrollTop = area.scrollTop;
    if (!this.isOwn()) this.stop();
    this.place();
  }

  /* Whether the text that was scored stands there, so that its windows do too. */
  isOwn() {
    return written() === this.data.pieces.text.slice(this.data.before);
  }

  /* The class of a piece: its colour, and where it lies beside the window. */
  look(place) {
    const n = this.ids[place], range = n < 0 ? null : this.segments[n];
    if (n < 0) return "plain";
    const [first, last] = this.wordAt(n), isBegun = first < n && this.textOf([n - 1, n - 1]).trim();
    const colour = this.colourOf(n) + (isBegun ? " goes-on" : "") + (last > n ? " is-open" : "");
    if (!range || !this.isShown()) return colour;
    const [from, fresh, end] = this.span();
    const part = range[0] < from || range[0] >= end ? "unseen" : range[0] < fresh ? "seen" : "guessed";
    return `${colour} ${part}`;
  }

  classOf(n) {
    this.classes = this.classList?.of === this.data ? this.classes : this.data.pieces.classes.split(" ");
    this.classList = { of: this.data };
    return this.classes[n];
  }

  /* The first and the last piece of what is coloured and told of as one. */
  wordAt(n, colouring = this.colouring) {
    return colouring === "surprise" ? this.words[n] : [n, n];
  }

  tokensOf([first, last]) {
    return this.segments[first] && [this.segments[first][0], this.segments[last][1]];
  }

  textOf([first, last]) {
    return this.data.pieces.text.slice(this.begins[first], this.begins[last + 1]).replace(/^ +(?=[^ ])/, "");
  }

  /* The class of a piece's colour.  A space that is a token of its own is part of its word, and has none. */
  colourOf(n, colouring = this.colouring) {
    const { rank, context, bits } = this.data, [begin, end] = this.wordAt(n, colouring), range = this.tokensOf([begin, end]);
    const own = range ? bits.slice(range[0], range[1] + 1) : [null];
    if (own.includes(null)) return this.classOf(n);
    if (begin < end && !this.textOf([n, n]).trim()) return "plain";
    const [first, last] = range;
    if (colouring === "rank") {
      const worst = Math.max(...rank.slice(first, last + 1));
      return "b" + RANKS.filter((edge) => worst > edge).length;
    }
    if (colouring === "context") {
      const widest = Math.max(1, ...context.map((value) => value ?? 0));
      return "c" + Math.min(5, Math.floor((6 * context[first]) / (widest + 1)));
    }
    if (colouring === "window") return "n" + (this.windowOf[first] % 3);
    return begin === end ? this.classOf(n) : colour(own.reduce((a, b) => a + b));
  }

  recolour(colouring) {
    this.colouring = colouring;
    this.laid.restyleAll();
  }

  /* --- pointing --- */

  element(n) {
    return n >= 0 && this.places[n] !== undefined ? this.laid.element(this.places[n]) : null;
  }

  under(x, y) {
    const hit = document
      .elementsFromPoint(x, y)
      .find((element) => element.dataset.n !== undefined && mirror.contains(element));
    return hit ? this.ids[Number(hit.dataset.n)] : -1;
  }

  point(x, y) {
    const n = this.under(x, y);
    if (n < 0 || this.dragged) {
      tip.hidden = true;
      return;
    }
    const own = this.wordAt(n);
    if (own[0] === this.pointed && !tip.hidden) return;
    this.pointed = own[0];
    tip.replaceChildren(...this.tell(this.textOf(own), this.tokensOf(own)));
    tip.hidden = false;
    const word = (this.element(own[0]) ?? this.element(n)).getBoundingClientRect(), box = tip.getBoundingClientRect();
    const isBelow = word.bottom + TIP_GAP + box.height < innerHeight;
    const top = isBelow ? word.bottom + TIP_GAP : word.top - TIP_GAP - box.height;
    const { clientWidth } = document.documentElement; // without the bar that scrolls the page
    tip.style.left = `${clamp(word.left, 8, Math.max(8, clientWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  }

  /* The token at the caret, in one line below the text: for a finger and for the keyboard. */
  tellCaret() {
    tip.hidden = true;
    if (area.selectionStart !== area.selectionEnd) return;
    let at = 0;
    const place = this.laid.lengths.findIndex((own) => (at += own) > area.selectionStart);
    this.tellPiece(this.ids[place] ?? -1);
  }

  tellPiece(n) {
    if (!this.segments[n]) return;
    const own = this.wordAt(n), range = this.tokensOf(own), { bits, alternatives, context, windows } = this.data;
    const losses = bits.slice(range[0], range[1] + 1);
    if (losses.includes(null)) return;
    const tops = (alternatives?.[range[0]] ?? []).filter(([guess]) => !guess.startsWith("…"));
    const word = visible(this.textOf(own)), guesses = tops.map(([guess, share]) => `${quoted(guess)} (${percent(share).replace(" ", "\u00a0")})`);
    const expected = !tops.length ? "" : tops[0][0] === word ? " No guess was likelier."
      : ` It expected ${guesses.slice(0, TOLD).join(", ")}.`;
    this.mark(own);
    // The start marker, which nobody sees, is none of those before it.
    const seen = context[range[0]] - (windows[this.windowOf[range[0]]]?.[3] ?? 0);
    const where = seen > 0 ? `after ${tokens(seen)}` : "with nothing before it";
    this.told = `“${word}”: ${oneIn(losses.reduce((a, b) => a + b))}, ${where}.${expected}`;
    say(this.told);
  }

  /* Underline the word that is told of, and no other. */
  mark(own) {
    for (const part of mirror.querySelectorAll(".lit")) part.classList.remove("lit");
    for (let piece = own?.[0]; piece <= own?.[1]; piece++) this.element(piece)?.classList.add("lit");
  }

  /* Bring a piece in sight, and tell of it. */
  reveal(n) {
    const element = this.element(n);
    if (!element) return;
    const top = element.offsetTop - area.scrollTop;
    if (top < 0 || top > area.clientHeight - 40) area.scrollTop = element.offsetTop - 60;
    stage.scrollIntoView({ block: "nearest", behavior: still() ? "auto" : "smooth" });
    this.tellPiece(n);
  }

  /* --- the window on the text --- */

  isShown() {
    return this.isShowingWindow && this.isOwn() && this.data.slides && this.data.windows.length > 0;
  }

  showWindow(isShown) {
    this.isShowingWindow = isShown;
    this.laid.restyleAll();
    this.place();
  }

  span() {
    return this.preview ?? this.data.windows[this.now] ?? [0, 0, 0, 0];
  }

  rects(token) {
    const n = this.pieceOf[clamp(token, 0, this.pieceOf.length - 1)];
    return [...(this.element(n)?.getClientRects() ?? [])];
  }

  /* As `plan_windows` does: a start token before the text takes a place; where no window overlaps the
     one before, each begins with that one's last token. */
  startPlace() {
    return this.data.starts ? 0 : this.span()[3];
  }

  place() {
    const isShown = this.isShown(), { windows, stride } = this.data;
    band.replaceChildren();
    const put = (handle, rect) => {
      handle.hidden = !rect || !isShown;
      if (handle.hidden) return;
      const box = over.getBoundingClientRect();
      const isOut = rect.bottom < box.top + 4 || rect.top > box.bottom - 4;
      handle.hidden = isOut && handle !== document.activeElement; // which would lose the keyboard
      handle.style.transform = `translate(${rect.right - box.left}px, ${rect.top - box.top}px)`;
      handle.style.height = `${rect.height}px`;
      handle.classList.toggle("turned", rect.right - box.left < 90); // else the edge cuts its name
    };
    const [from, fresh, end] = this.span();
    const step = this.preview?.stride ?? stride;
    const after = this.preview ? from + step - this.startPlace() : windows[this.now + 1]?.[0];
    put(this.handles.window, isShown && this.rects(end - 1).at(-1));
    put(this.handles.stride, isShown && after && windows.length > 1 && this.rects(after - 1).at(-1));
    for (const [name, handle] of Object.entries(this.handles)) {
      const value = this.preview?.[name] ?? this.settings[name] ?? this.settings.window;
      const [low, high] = this.limits(name);
      const told = { valuemin: low, valuemax: high, valuenow: value, valuetext: tokens(value) };
      for (const [key, words] of Object.entries(told)) handle.setAttribute(`aria-${key}`, words);
    }
    if (!isShown) return;
    const frame = make("div", "frame"); // one outline around all of its lines
    frame.append(...this.stretch(from, end, "seen"));
    band.append(frame, ...this.stretch(fresh, end, "guessed"));
  }

  limits(name) {
    const { window, longest } = this.settings;
    return name === "window" ? [2, longest] : [1, Math.max(1, window - Number(this.data.starts))];
  }

  /* The band from one token to another: the rest of its first line, whole lines, and the beginning of
     the last one. */
  stretch(from, end, name) {
    const first = this.rects(from)[0], last = this.rects(end - 1).at(-1);
    if (end <= from || !first || !last) return [];
    const box = mirror.getBoundingClientRect(), looks = getComputedStyle(mirror);
    const line = parseFloat(looks.lineHeight), left = parseFloat(looks.paddingLeft) - 4;
    const right = mirror.clientWidth - parseFloat(looks.paddingRight) + 4;
    const runsLeft = RUNS_LEFT.test(this.laid.words(this.places[this.pieceOf[from]]));
    const top = (rect) => rect.top - box.top + mirror.scrollTop - (line - rect.height) / 2;
    const x = (value) => value - box.left;
    const piece = (low, high, begin, to) => {
      const part = make("i", name);
      const [width, height] = [Math.max(0, to - begin), high - low];
      Object.assign(part.style, {
        top: `${low}px`, height: `${height}px`, left: `${begin}px`, width: `${width}px`,
      });
      return part;
    };
    const [high, low] = [top(first), top(last)];
    const ends = [Math.min(x(first.left), x(last.left)), Math.max(x(first.right), x(last.right))];
    if (low - high < line / 2) return [piece(high, high + line, ...ends)];
    const begin = runsLeft ? [left, x(first.right)] : [x(first.left), right];
    const finish = runsLeft ? [x(last.left), right] : [left, x(last.right)];
    return [
      piece(high, high + line, ...begin),
      piece(high + line, low, left, right),
      piece(low, low + line, ...finish),
    ];
  }

  /* What a window or a stride would do to the window that is shown: the result follows. */
  foresee(name, value) {
    const [from, , , start] = this.span(), { starts, windows, bits } = this.data;
    const window = name === "window" ? value : this.settings.window;
    const isHalf = this.settings.stride === Math.floor(this.settings.window / 2); // as it is unless one is chosen
    const kept = isHalf ? Math.max(1, Math.floor(window / 2)) : (this.settings.stride ?? window);
    const stride = Math.min(window, name === "stride" ? value : kept);
    const reach = window - Number(starts) + Number(!starts && stride === window) - this.startPlace();
    const end = Math.min(bits.length, from + reach);
    const fresh = this.now === 0 ? windows[0][1] : Math.max(from, end - stride);
    this.preview = Object.assign([from, Math.min(fresh, end), end, start], { window, stride });
    this.laid.restyleAll();
    this.place();
    say(name === "window" ? `A window of ${tokens(value)}: the model sees no more.`
      : `A stride of ${tokens(value)}: so far the window moves on each time.`);
  }

  makeHandle(name) {
    const handle = make("span", `handle ${name}`);
    handle.hidden = true;
    handle.tabIndex = 0;
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `Handle of the ${name}, on the text`);
    handle.append(make("span", "", name));
    over.append(handle);
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      handle.focus();
      handle.setPointerCapture(event.pointerId);
      this.stop();
      this.dragged = name;
      tip.hidden = true;
    });
    handle.addEventListener("pointermove", (event) => {
      if (handle.hasPointerCapture(event.pointerId)) this.drag(name, event.clientX, event.clientY);
    });
    handle.addEventListener("lostpointercapture", () => {
      this.dragged = null;
      if (this.preview) this.choose({ [name]: this.preview[name] });
    });
    handle.addEventListener("keydown", (event) => {
      const value = Number(handle.getAttribute("aria-valuenow")), [low, high] = this.limits(name);
      const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 8, PageDown: -8 };
      const to = { Home: low, End: high }[event.key] ?? value + (steps[event.key] ?? NaN);
      if (Number.isNaN(to)) return;
      event.preventDefault();
      this.foresee(name, clamp(to, low, high));
      this.choose({ [name]: clamp(to, low, high) });
      this.follow();
    });
    return handle;
  }

  /* Keep the handle that the keyboard moves in sight. */
  follow() {
    const handle = document.activeElement, box = over.getBoundingClientRect();
    if (!over.contains(handle)) return;
    const { top, bottom } = handle.getBoundingClientRect();
    if (top < box.top || bottom > box.bottom) area.scrollTop += top - box.top - box.height / 2;
  }

  /* Take a handle to the piece nearest to a place, also beside the text. */
  drag(name, x, y) {
    const box = over.getBoundingClientRect();
    const row = clamp(y, box.top + 8, box.bottom - 8), column = clamp(x, box.left + 4, box.right - 4);
    const columns = [];
    for (let aside = 0; aside < box.width; aside += 8) columns.push(column - aside, column + aside);
    const n = columns.map((at) => this.under(at, row)).find((found) => found >= 0) ?? -1;
    const range = this.segments[n];
    if (!range) return;
    const { starts, stride } = this.data, width = range[1] - this.span()[0] + 1 + this.startPlace();
    const size = width + Number(starts) - Number(!starts && width - 1 <= stride);
    this.foresee(name, clamp(name === "window" ? size : width, ...this.limits(name)));
  }

  /* --- sliding it --- */

  step(window) {
    this.now = clamp(window, 0, this.data.windows.length - 1);
    this.preview = null;
    this.laid.restyleAll();
    this.place();
    const [from, first] = this.data.windows[this.now];
    const forgot = from > 0 ? " from the light one; all before the frame is forgotten" : "";
    say(`Window ${fmt(this.now + 1)} of ${fmt(this.data.windows.length)}: the frame is all it sees. ` +
      `It guesses the dark part${forgot}.`);
    const element = this.element(this.pieceOf[first]);
    if (!element) return;
    const top = element.offsetTop - area.scrollTop;
    if (top < 0 || top > area.clientHeight - 60) area.scrollTop = element.offsetTop - 60;
  }

  play(from = 0, pause = STEP_MS, ended = () => {}) {
    if (this.timer) return this.stop();
    this.showWindow(true);
    byId("play").textContent = "Pause";
    this.step(from);
    this.timer = setInterval(() => {
      if (this.now < this.data.windows.length - 1) return this.step(this.now + 1);
      this.stop();
      return ended();
    }, pause);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Slide the window";
  }
}

function say(words) {
  if (says.textContent !== words) says.textContent = words; // else it would be read out again
}

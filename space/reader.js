/* The text, its windows and its surprise: what is pointed at in one of them lights in all. */
const PLAY_MS = 20000, STEP_MS = [60, 900], MOST_LANES = 6, MOST_BARS = 600, TALLEST = 16;
let unit = "tokens"; // what a visitor chose outlives a result

function guesses(alternatives, token, bits, rank) {
  const list = make("div", "ps-guesses");
  const row = (guess, share, hit) => {
    const bar = make("i", "ps-bar");
    bar.style.width = (100 * share).toFixed(1) + "%";
    list.append(make("code", hit ? "ps-hit" : "", guess), bar, make("span", hit ? "ps-hit" : "", percent(share)));
  };
  alternatives.forEach(([guess, share], n) => row(visible(guess), share, rank === n + 1));
  if (rank > alternatives.length) row(`${ordinal(rank)}: ${token}`, 2 ** -bits, true);
  return list;
}

function readerView(view, data) {
  const map = view.querySelector(".ps-map");
  const slider = view.querySelector(".ps-steps input"), says = view.querySelector(".ps-says");
  const play = view.querySelector('[data-step="play"]');
  const { windows, bits } = data, length = bits.length;
  const windowOf = new Array(length).fill(-1), pieceOf = new Array(length).fill(-1);
  // A token that several windows score has the columns of the first.
  windows.forEach(([, first, end], n) => { for (let t = first; t < end; t++) if (windowOf[t] < 0) windowOf[t] = n; });
  const box = view.querySelector(".ps-text");
  const asTokens = { label: box.getAttribute("aria-label"), ...JSON.parse(box.dataset.pieces), segments: data.segments };
  const life = signal(view);
  let now = -1, timer = null, shown = asTokens, classes, segments;

  /* In words: one piece of the text, and each of its tokens. */
  function describe(number, piece) {
    const head = make("p", "ps-piece"), range = segments[number];
    head.append(make("code", "", visible(piece)));
    if (shown.scores) return [head, ...describeWord(range, shown.scores[number])];
    if (!range) return [head, make("p", "", "No token stands for this; it costs the model nothing.")];
    const [first, last] = range;
    if (first === last) return [head, ...describeToken(first, visible(piece))];
    const own = bits.slice(first, last + 1), together = own.reduce((a, b) => a + b, 0);
    const sum = own.includes(null) ? "" : `; together ${bitsText(together)}`;
    return [head, make("p", "", `The tokenizer splits this into ${own.length} tokens${sum}.`), ...tokenParts(first, last)];
  }

  function tokenParts(first, last) {
    return bits.slice(first, last + 1).map((own, k) => {
      const part = make("details"), name = visible(data.names[first + k]), cost = own === null ? "not scored" : bitsText(own);
      part.append(make("summary", "", `Token ${k + 1} of ${last - first + 1}, “${name}”: ${cost}`), ...describeToken(first + k, name));
      return part;
    });
  }

  function describeWord(range, scores) {
    if (!scores) return [make("p", "", "Part of the context: read, and not scored.")];
    if (!range) return [make("p", "", "A token reaches across an edge of this word, so that it has no score.")];
    const [surprisal, plain, entropy] = scores, [first, last] = range;
    if (surprisal === null) return [make("p", "", "Not scored: no window predicts all of its tokens."), ...tokenParts(first, last)];
    return [
      make("p", "", `${bitsText(surprisal)} of surprise: ${oneIn(Math.max(0, surprisal))}.`),
      make("p", "", `Before it the model saw ${tokens(data.context[first])}, and what it expected had an entropy of ${bitsText(entropy)}.`),
      make("p", "ps-note", `Its ${tokens(last - first + 1)} alone: ${bitsText(plain)}. The space after a word counts towards that word.`),
      ...tokenParts(first, last),
    ];
  }

  function describeToken(token, name) {
    if (token < data.num_context_tokens) return [make("p", "", "Part of the context: read, and not scored.")];
    if (bits[token] === null) return [make("p", "", "Not scored: no window has it among the tokens it predicts.")];
    const rank = data.rank[token], [begin, , end, start] = windows[windowOf[token]];
    const alternatives = data.alternatives[token];
    return [
      make("p", "", `${bitsText(bits[token])} of surprise: ${oneIn(bits[token])}. It was the model's ${rank === 1 ? "first" : ordinal(rank)} guess.`),
      make("p", "", `The model saw ${tokens(data.context[token])} before it${start ? ", the start token among them" : ""}, ` +
        `in window ${fmt(windowOf[token] + 1)} of ${fmt(windows.length)} (tokens ${fmt(begin + 1)} to ${fmt(end)} of ${data.num_context_tokens ? "context and text" : "the text"}).`),
      make("p", "ps-note", "What it expected most:"),
      guesses(alternatives, name, bits[token], rank),
    ];
  }

  /* The map: surprise over the whole text, the windows in lanes, and the present window on both. */
  const line = make("div", "ps-line"), lanes = make("div", "ps-lanes"), pane = make("div", "ps-span");
  const context = make("i", "ps-context"), fresh = make("i", "ps-new"), cursor = make("i", "ps-cursor"), dot = make("i", "ps-dot");
  const picture = make("div", "ps-picture"), scale = make("div", "ps-scale");
  cursor.hidden = true;
  cursor.append(dot);
  pane.append(context, fresh);
  line.append(surpriseLine());
  lanes.append(windowLanes());
  picture.append(line, lanes, pane, cursor);
  scale.append(make("span", "", "token 1"), view.querySelector(".ps-key"), make("span", "", `token ${fmt(length)}`));
  map.replaceChildren(picture, scale);

  function svg(height, ...paths) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    element.setAttribute("viewBox", `0 0 ${length} ${height}`);
    element.setAttribute("preserveAspectRatio", "none");
    for (const [name, shapes] of paths) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", name);
      path.setAttribute("d", shapes.map(([x, y, w, h]) => `M${x} ${y}h${w}v${h}h${-w}z`).join(""));
      element.append(path);
    }
    return element;
  }

  /* Bars of mean surprise, one for each token of a short text; grey where nothing is scored. */
  function surpriseLine() {
    const step = Math.max(1, length / MOST_BARS), scored = [], unscored = [];
    for (let from = 0; from < length; from += step) {
      const own = bits.slice(Math.floor(from), Math.max(Math.floor(from) + 1, Math.floor(from + step))).filter((value) => value !== null);
      const mean = Math.min(TALLEST, own.reduce((a, b) => a + b, 0) / own.length);
      if (own.length) scored.push([from, TALLEST - mean, step, mean]);
      else unscored.push([from, 0, step, TALLEST]);
    }
    return svg(TALLEST, ["ps-unscored", unscored], ["ps-surprise", scored]);
  }

  /* Windows that overlap stand in lanes; of very many, every so-manyth is drawn. */
  function windowLanes() {
    const step = windows.length > 1 ? Math.max(1, windows[1][0] - windows[0][0]) : length;
    const width = Math.max(...windows.map(([begin, , end]) => end - begin), 1);
    const skip = Math.max(1, Math.ceil(width / step / MOST_LANES), Math.ceil(windows.length / MOST_BARS));
    const drawn = windows.filter((_, n) => n % skip === 0), count = Math.min(drawn.length, Math.ceil(width / step / skip));
    const read = [], scored = [];
    drawn.forEach(([begin, first, end], n) => {
      read.push([begin, (n % count) + 0.15, first - begin, 0.7]);
      scored.push([first, (n % count) + 0.15, end - first, 0.7]);
    });
    lanes.style.height = `${10 * count + 4}px`;
    lanes.title = skip > 1 ? `1 in ${fmt(skip)} windows is drawn` : "";
    return svg(count, ["ps-context", read], ["ps-new", scored]);
  }

  let colouring = "surprise";
  const ranks = [1, 10, 100, 1000, 10000];
  const widest = Math.max(1, ...data.context.filter((value) => value !== null));
  const COLOURS = {
    surprise: (number) => classes[number],
    rank: (number, [first, last]) => "b" + ranks.filter((edge) => Math.max(...data.rank.slice(first, last + 1)) > edge).length,
    context: (number, [first]) => "c" + Math.min(5, Math.floor(6 * data.context[first] / (widest + 1))),
    window: (number, [first]) => "n" + windowOf[first] % 3,
  };
  function look(number) {
    const range = segments[number];
    if (!range) return classes[number];
    const [first, last] = range, scored = !bits.slice(first, last + 1).includes(null);
    const coloured = scored ? COLOURS[colouring](number, range) : classes[number];
    const [begin, fresh, end] = windows[now] ?? [0, 0, 0];
    return first < begin || first >= end ? coloured : `${coloured} ${first < fresh ? "in-context" : "in-new"}`;
  }
  choosePieces(asTokens);
  const { lay, point, hold, bring, restyle, restyleAll } = explorer(view, describe, (number) => {
    const range = segments[number];
    if (!range) return;
    stop();
    cursor.style.left = (100 * (range[0] + 0.5) / length) + "%";
    dot.style.bottom = (100 * Math.min(TALLEST, bits[range[0]] ?? 0) / TALLEST) + "%";
    cursor.hidden = false;
    if (windowOf[range[0]] >= 0) show(windowOf[range[0]]);
  }, look);

  function choosePieces(pieces) {
    shown = pieces;
    segments = pieces.segments;
    classes = pieces.classes.split(" ");
    pieceOf.fill(-1);
    segments.forEach((range, n) => range && pieceOf.fill(n, range[0], range[1] + 1));
  }
  /* Tokens, or words: those are scored when they are first asked for. */
  function chooseUnit(choice) {
    const wanted = document.querySelector("#words input"), pieces = choice === "words" ? data.words : asTokens;
    unit = choice;
    if (wanted.checked !== (choice === "words")) wanted.click();
    if (!pieces || pieces === shown) return;
    choosePieces(pieces);
    lay(pieces);
  }
  for (const choice of view.querySelectorAll("[data-units] input")) {
    choice.addEventListener("change", () => chooseUnit(choice.value), life);
    if (choice.value === "words" && unit === "words" && data.words) { choice.checked = true; chooseUnit("words"); }
  }

  function restyleWindow([begin, , end]) {
    for (let token = begin; token < end; token++) restyle(pieceOf[token]);
  }
  function show(window) {
    if (window === now) return;
    const left = windows[now] ?? [0, 0, 0];
    now = window;
    restyleWindow(left);
    restyleWindow(windows[now]);
    const [begin, first, end, start] = windows[now], scored = end - first, before = first - begin + start;
    place(context, begin, first, length);
    place(fresh, first, end, length);
    slider.value = now + 1;
    const words = `Window ${fmt(now + 1)} of ${fmt(windows.length)}`;
    slider.setAttribute("aria-valuetext", `${words}: tokens ${fmt(begin + 1)} to ${fmt(end)}`);
    const most = before + scored - 1, seen = before === most ? tokens(most) : `${fmt(before)} to ${tokens(most)}`;
    says.textContent = end - begin === 1 ? `${words} reads and scores 1 token, with ${seen} of context.` :
      `${words} reads tokens ${fmt(begin + 1)} to ${fmt(end)}${start ? " after a start token" : ""} and scores ` +
      `${scored === 1 ? "1 of them" : fmt(scored) + " of them"}, with ${seen} of context.`;
  }

  const step = (by) => { show(clamp(now + by, 0, windows.length - 1)); bring(Math.max(0, pieceOf[windows[now][1]])); };
  function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
  function start() {
    if (now === windows.length - 1) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (!view.isConnected || now === windows.length - 1) return stop();
      step(1);
    }, clamp(PLAY_MS / windows.length, ...STEP_MS));
  }
  view.querySelector(".ps-steps").addEventListener("click", (event) => {
    const by = event.target.dataset.step;
    if (by === "play") return timer ? stop() : start();
    if (by) { stop(); step(Number(by)); }
  }, life);
  slider.addEventListener("input", () => { stop(); step(slider.value - 1 - now); }, life);
  life.signal.addEventListener("abort", stop);

  const tokenAt = (event) => {
    const box = picture.getBoundingClientRect();
    return clamp(Math.floor((event.clientX - box.left) / box.width * length), 0, length - 1);
  };
  picture.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(pieceOf[tokenAt(event)]); });
  picture.addEventListener("click", (event) => {
    const number = pieceOf[tokenAt(event)];
    if (number < 0) return;
    hold(number);
    bring(number);
  });

  chooseColour(view, (choice) => { colouring = choice; restyleAll(); });
  if (windows.length) show(0);
}

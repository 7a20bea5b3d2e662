/* One line of a story, read through a window whose width and step are dragged on the picture. */
const LOOP_MS = 12000, SLIDE_MS = 450, HOLD_MS = 2200;

function heroView(view, data) {
  const reel = view.querySelector(".ps-reel"), film = view.querySelector(".ps-film");
  const caption = view.querySelector(".ps-caption"), play = view.querySelector("[data-hero=play]");
  const soFar = view.querySelector(".ps-so-far"), read = view.querySelector(".ps-read");
  const [least, most] = data.widths, last = data.tokens.length + 1; // places, the start token's included
  let { width, stride } = data, windows, frames, frame = 0, state, timer = null, inSight = true;

  const cells = ["▸", ...data.tokens].map((token) => {
    const cell = make("span", "ps-cell", token.match(/^\s*/)[0]);
    cell.append(make("b", "", token.trimStart()));
    return cell;
  });
  cells[0].title = "the start token: here begins a text";
  const strip = make("div", "ps-cells");
  strip.setAttribute("aria-hidden", "true");
  strip.append(...cells);
  const pane = make("div", "ps-pane"), context = make("i", "ps-context");
  pane.append(context);
  const rulers = {
    width: ruler("Window", "ps-term-window", () => [least, most], (n) => { width = n; stride = Math.min(stride, width - 1); }),
    stride: ruler("Stride", "ps-term-stride", () => [1, width - 1], (n) => { stride = n; }),
  };
  film.append(rulers.width.element, pane, strip, rulers.stride.element);

  /* A bracket with a handle at its end, which mouse, finger and arrow keys move. */
  function ruler(name, className, limits, set) {
    const element = make("div", "ps-ruler " + className), words = make("span"), handle = make("button", "ps-handle");
    handle.type = "button";
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `Picture: ${name.toLowerCase()} in tokens`);
    element.append(words, handle);
    let value = 0;
    const move = (n) => {
      const wanted = clamp(n, ...limits());
      if (wanted === value) return;
      set(wanted);
      replan();
    };
    handle.addEventListener("pointerdown", (event) => { handle.setPointerCapture(event.pointerId); stop(); });
    handle.addEventListener("pointermove", (event) => {
      if (!handle.hasPointerCapture(event.pointerId)) return;
      const begin = windows[state.window][0], x = event.clientX - film.getBoundingClientRect().left;
      const ends = cells.map((cell) => Math.abs(cell.offsetLeft + cell.offsetWidth - x));
      move(ends.indexOf(Math.min(...ends)) + 1 - begin);
    });
    handle.addEventListener("pointerup", start);
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -1e6, End: 1e6 }[event.key];
      if (!step) return;
      event.preventDefault();
      stop();
      move(value + step);
    });
    const draw = (n, from, to) => {
      value = n;
      const [low, high] = limits();
      for (const [key, number] of [["min", low], ["max", high], ["now", n]]) handle.setAttribute("aria-value" + key, number);
      words.textContent = `${name.toLowerCase()} ${n}`;
      stretch(element, from, to);
      element.classList.toggle("ps-narrow", parseFloat(element.style.width) < words.offsetWidth + 20); // behind the handle
    };
    return { element, draw };
  }

  function stretch(element, from, to) {
    const right = cells[Math.min(to, last) - 1], left = cells[Math.min(from, last - 1)].offsetLeft;
    element.style.left = left + "px";
    element.style.width = right.offsetLeft + right.offsetWidth - left + "px";
  }

  /* The windows over the line, and what the picture shows one after another. */
  function replan() {
    windows = [];
    for (let begin = 0, first = 1; first < last; begin += stride) {
      const end = Math.min(begin + width, last);
      windows.push([begin, first, end]);
      first = end;
    }
    frames = windows.flatMap(([, first, end], window) =>
      Array.from({ length: end - first + 1 }, (_, n) => ({ window, done: first + n })));
    frame = 0;
    show({ window: Math.min(2, windows.length - 1), done: last }); // standing still: all of it scored
  }

  const bitsAt = (place) => {
    const [begin] = windows.find(([, , end]) => place < end);
    return data.bits[begin][place - begin - 1];
  };

  function show(now) {
    state = now;
    const { window, done } = state, [begin, first, end] = windows[window];
    let sum = 0;
    cells.forEach((cell, place) => {
      const scored = place >= 1 && place < done, bits = scored ? bitsAt(place) : 0;
      sum += bits;
      cell.classList.toggle("ps-read-now", place >= begin && place < end);
      cell.lastChild.className = scored ? colour(bits) : "";
      cell.classList.toggle("ps-fresh", scored && place >= first);
    });
    stretch(pane, begin, end);
    context.style.width = (100 * (cells[first].offsetLeft - cells[begin].offsetLeft) / Math.max(1, parseFloat(pane.style.width))) + "%";
    rulers.width.draw(width, begin, begin + width);
    rulers.stride.draw(stride, begin, begin + stride);
    const middle = parseFloat(pane.style.left) + parseFloat(pane.style.width) / 2;
    const slack = film.offsetWidth - reel.clientWidth;
    film.style.transform = `translateX(${-clamp(middle - reel.clientWidth / 2, 0, Math.max(0, slack))}px)`;
    tell(window, done, sum);
  }

  function tell(window, done, sum) {
    const [begin, first, end] = windows[window], fresh = end - first, seen = first - begin;
    soFar.textContent = done > 1 ? number(2 ** (sum / (done - 1))) : "–";
    read.textContent = fmt(windows.slice(0, done === last ? windows.length : window + 1).reduce((total, [from, , to]) => total + to - from - 1, 0));
    caption.replaceChildren(
      make("b", "ps-term-window", `Window ${window + 1} of ${windows.length}`),
      ` holds ${tokens(end - begin)} and scores ${window ? `the last ${fresh === 1 ? "one" : fresh}` : "all after the start sign"}, with `,
      window ? make("b", "ps-term-context", `${tokens(seen)} of context`) : "hardly any context",
      window ? " or more." : " at first.");
  }

  function run() {
    show(frames[frame]);
    const slides = Math.min(SLIDE_MS, LOOP_MS / 2 / windows.length);
    const lights = (LOOP_MS - HOLD_MS - slides * windows.length) / (frames.length - windows.length);
    const isLast = frame === frames.length - 1, begins = state.done === windows[state.window][1];
    timer = setTimeout(() => {
      frame = isLast ? 0 : frame + 1;
      if (view.isConnected && inSight) run();
    }, isLast ? HOLD_MS : begins ? slides : lights);
  }
  function stop() { clearTimeout(timer); timer = null; play.textContent = "Play"; }
  function start() { stop(); play.textContent = "Pause"; run(); }
  play.addEventListener("click", () => (timer ? stop() : start()));

  /* Nobody's battery pays for a picture that is out of sight. */
  new IntersectionObserver((seen) => {
    const wasInSight = inSight;
    inSight = seen.at(-1).isIntersecting;
    if (inSight && !wasInSight && timer) start();
  }).observe(view);

  /* The introduction's words point at their part of the picture. */
  for (const word of document.querySelectorAll("[data-term]"))
    for (const [happens, on] of [["pointerenter", true], ["pointerleave", false]])
      word.addEventListener(happens, () => view.classList.toggle("ps-show-" + word.dataset.term, on));

  if (reel.clientWidth < 500) [width, stride] = [Math.max(least, Math.round(width * 0.6)), Math.max(1, stride - 1)];
  replan();
  if (still()) stop(); else start();
  new ResizeObserver(() => show(state)).observe(reel);
}

/* Brings the views to life: pointing at tokens, stepping through windows.
   Every view carries its data in data-payload.  Texts only ever become text nodes. */
(() => {
  "use strict";

  const ENDLESS = 1e9;
  const BARS_BEFORE = 9, BARS_AFTER = 11, STRIP_AROUND = 40, STEP_MS = 900;
  const fmt = (value) => value.toLocaleString("en");

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const visible = (text) =>
    text === "" ? "(nothing)" : text.includes("\uFFFD") ? "(part of a character)" :
      text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");

  const percent = (share) =>
    share >= 0.1 ? (100 * share).toFixed(0) + " %" : share >= 0.001 ? (100 * share).toFixed(1) + " %" : "< 0.1 %";

  const oneIn = (bits) => {
    if (bits >= ENDLESS) return "the model gave it no chance at all";
    const odds = 2 ** bits;
    return odds < 10 ? `a chance of ${percent(1 / odds)}` :
      `a chance of 1 in ${odds < 1e6 ? fmt(Math.round(odds)) : odds.toPrecision(2)}`;
  };

  const bitsText = (bits) => bits >= ENDLESS ? "endlessly many bits" : `${bits.toFixed(2)} bits`;

  const ordinal = (n) => {
    const tens = n % 100, ones = n % 10;
    return fmt(n) + (tens > 10 && tens < 14 ? "th" : ["th", "st", "nd", "rd"][ones] || "th");
  };

  const windowOf = (windows, token) => windows.findIndex(([, first, end]) => first <= token && token < end);

  /* A text whose pieces are pointed at with mouse, finger or arrow keys. */
  function explorer(view, describe) {
    const text = view.querySelector(".ps-text"), detail = view.querySelector(".ps-detail");
    const pieces = [...text.children];
    let selected = -1, pinned = false;
    pieces.forEach((piece, number) => { piece.dataset.n = number; piece.setAttribute("role", "option"); });

    function select(number) {
      if (number < 0 || number >= pieces.length) return;
      if (selected >= 0) { pieces[selected].removeAttribute("aria-selected"); pieces[selected].removeAttribute("id"); }
      selected = number;
      pieces[number].setAttribute("aria-selected", "true");
      pieces[number].id = "ps-active-" + view.dataset.view;
      text.setAttribute("aria-activedescendant", pieces[number].id);
      detail.replaceChildren(...describe(number, pieces[number].textContent));
    }
    const under = (event) => event.target.closest(".ps-text > span");
    text.addEventListener("pointerover", (event) => {
      const piece = under(event);
      if (piece && !pinned && event.pointerType === "mouse") select(Number(piece.dataset.n));
    });
    text.addEventListener("click", (event) => {
      const piece = under(event);
      if (piece) { pinned = true; select(Number(piece.dataset.n)); }
    });
    text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const place = event.key === "Home" ? 0 : event.key === "End" ? pieces.length - 1 : step ? selected + step : null;
      if (event.key === "Escape") pinned = false;
      if (place === null) return;
      event.preventDefault();
      pinned = true;
      select(Math.max(0, Math.min(pieces.length - 1, place)));
      pieces[selected].scrollIntoView({ block: "nearest" });
    });
  }

  function guesses(alternatives, name) {
    const list = make("div", "ps-guesses");
    for (const [guess, share] of alternatives) {
      const bar = make("i", "ps-bar");
      bar.style.width = (100 * share).toFixed(1) + "%";
      list.append(make("code", guess === name ? "ps-hit" : "", visible(guess)), bar, make("span", "", percent(share)));
    }
    return list;
  }

  function describeToken(data, token, part) {
    const nodes = [];
    if (part) nodes.push(make("p", "ps-piece", part));
    const bits = data.bits[token];
    if (bits === null) {
      nodes.push(make("p", "", "Not scored: no window has it among the tokens it predicts."));
      return nodes;
    }
    nodes.push(make("p", "", `${bitsText(bits)} of surprise: ${oneIn(bits)}. ` +
      (data.rank[token] === 1 ? "It was the model's first guess." : `It was the model's ${ordinal(data.rank[token])} guess.`)));
    const number = windowOf(data.windows, token), [begin, , end, start] = data.windows[number];
    nodes.push(make("p", "", `The model saw ${fmt(data.context[token])} token${data.context[token] === 1 ? "" : "s"} before it` +
      `${start ? ", the start token among them" : ""}, in window ${fmt(number + 1)} of ${fmt(data.windows.length)} ` +
      `(tokens ${fmt(begin + 1)} to ${fmt(end)} of the text).`));
    nodes.push(make("p", "ps-note", "What it expected most:"), guesses(data.alternatives[token]));
    return nodes;
  }

  function tokenView(view, data) {
    explorer(view, (number, piece) => {
      const range = data.segments[number], head = make("p", "ps-piece");
      head.append(make("code", "", visible(piece)));
      if (range === null) return [head, make("p", "", "No token stands for this; it costs the model nothing.")];
      const [first, last] = range;
      if (first === last) return [head, ...describeToken(data, first)];
      const bits = data.bits.slice(first, last + 1);
      const parts = bits.map((_, k) => describeToken(data, first + k, `Token ${k + 1} of ${bits.length}`)).flat();
      if (bits.includes(null)) return [head, ...parts];
      const sum = bits.reduce((a, b) => a + b, 0);
      return [head, make("p", "", `The tokenizer splits this into ${bits.length} tokens; together ${bitsText(sum)}.`), ...parts];
    });
  }

  function compareView(view, data) {
    explorer(view, (number, piece) => {
      const head = make("p", "ps-piece"), bits = data.bits[number];
      head.append(make("code", "", visible(piece)));
      if (!bits) return [head, make("p", "", "Not scored by both models.")];
      const lines = data.models.map((name, k) => make("p", "", `${name}: ${bitsText(bits[k])}, ${oneIn(bits[k])}.`));
      return [head, ...lines];
    });
  }

  /* The plan: bars around the present window, and the text as that window sees it. */
  function planView(view, data) {
    const bars = view.querySelector(".ps-bars"), strip = view.querySelector(".ps-strip");
    const slider = view.querySelector("input"), says = view.querySelector(".ps-says"), play = view.querySelector('[data-step="play"]');
    const { windows, segments, pieces } = data;
    let timer = null;

    function place(element, from, to, low, span) {
      element.style.left = (100 * (from - low) / span).toFixed(3) + "%";
      element.style.width = (100 * Math.max(0, to - from) / span).toFixed(3) + "%";
    }

    function drawBars(now, token) {
      let from = Math.max(0, now - BARS_BEFORE);
      const to = Math.min(windows.length, Math.max(now + BARS_AFTER, from + BARS_BEFORE + BARS_AFTER));
      from = Math.max(0, Math.min(from, to - BARS_BEFORE - BARS_AFTER));
      const low = windows[from][0], span = windows[to - 1][2] - low || 1;
      const rows = windows.slice(from, to).map(([begin, first, end], k) => {
        const row = make("div", "ps-row");
        row.dataset.window = from + k;
        const context = make("i", "ps-context"), fresh = make("i", "ps-new");
        place(context, begin, first, low, span);
        place(fresh, first, end, low, span);
        row.append(context, fresh);
        if (from + k === now) {
          const lit = make("i", "ps-lit");
          place(lit, begin, end, low, span);
          row.append(lit);
        }
        return row;
      });
      const frame = make("div");
      frame.style.position = "relative";
      frame.append(...rows);
      if (token !== undefined) {
        const cursor = make("i", "ps-cursor");
        cursor.style.left = (100 * (token + 0.5 - low) / span).toFixed(3) + "%";
        frame.append(cursor);
      }
      const scale = make("div", "ps-scale");
      scale.append(make("span", "", `token ${fmt(low + 1)}`), make("span", "", `token ${fmt(low + span)}`));
      bars.replaceChildren(frame, scale);
    }

    function drawStrip(now, pointed) {
      const [begin, first, end] = windows[now];
      const nodes = [];
      let target = null;
      segments.forEach((range, k) => {
        const token = range ? range[0] : null, last = range ? range[1] : null;
        if (range && (last < begin - STRIP_AROUND || token >= end + STRIP_AROUND)) return;
        if (!range && (k === 0 || !nodes.length)) return;
        if (!range && nodes.at(-1).dataset.k != k - 1) return;
        const where = !range ? nodes.at(-1).className : token >= first && token < end ? "in-new" :
          token >= begin && token < first ? "in-context" : "out";
        const span = make("span", where, pieces[k]);
        span.dataset.k = k;
        if (range && pointed !== undefined && token <= pointed && pointed <= last) span.classList.add("ps-pointed");
        if (!target && where === "in-new") target = span;
        nodes.push(span);
      });
      strip.replaceChildren(...nodes);
      if (target && pointed === undefined) strip.scrollTop = Math.max(0, target.offsetTop - strip.clientHeight / 2);
    }

    function tell(now, pointed) {
      const [begin, first, end, start] = windows[now];
      const context = first - begin + start, scored = end - first;
      says.textContent = (pointed === undefined ? "" : `Token ${fmt(pointed + 1)} is scored here, with ${fmt(pointed - begin + start)} tokens before it. `) +
        `Window ${fmt(now + 1)} of ${fmt(windows.length)} reads tokens ${fmt(begin + 1)} to ${fmt(end)}` +
        `${start ? " after a start token" : ""} and scores ${scored === 1 ? "1 of them" : fmt(scored) + " of them"}, ` +
        `${fmt(first + 1)} to ${fmt(end)}: the first with ${fmt(context)} token${context === 1 ? "" : "s"} of context, the last with ${fmt(context + scored - 1)}.`;
    }

    function show(now, pointed) {
      slider.value = now + 1;
      drawBars(now, pointed);
      tell(now, pointed);
      drawStrip(now, pointed);
    }
    const now = () => Number(slider.value) - 1;
    const clamp = (n) => Math.max(0, Math.min(windows.length - 1, n));

    function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
    function start() {
      if (now() === windows.length - 1) show(0);
      play.textContent = "Pause";
      timer = setInterval(() => {
        if (!view.isConnected || now() === windows.length - 1) return stop();
        show(now() + 1);
      }, STEP_MS);
    }
    view.querySelector(".ps-steps").addEventListener("click", (event) => {
      const step = event.target.dataset.step;
      if (step === "play") return timer ? stop() : start();
      if (step) { stop(); show(clamp(now() + Number(step))); }
    });
    slider.addEventListener("input", () => { stop(); show(now()); });
    bars.addEventListener("click", (event) => {
      const row = event.target.closest(".ps-row");
      if (row) { stop(); show(Number(row.dataset.window)); }
    });

    /* The token under the cursor lights the window that scored it. */
    function point(event) {
      const span = event.target.closest(".ps-strip > span"), range = span && segments[span.dataset.k];
      if (!range) return;
      const scored = windowOf(windows, range[0]);
      if (scored < 0) { says.textContent = "This token is not scored in any window."; return; }
      strip.querySelector(".ps-pointed")?.classList.remove("ps-pointed");
      span.classList.add("ps-pointed");
      slider.value = scored + 1;
      drawBars(scored, range[0]);
      tell(scored, range[0]);
      if (event.type === "click") { stop(); drawStrip(scored, range[0]); }
    }
    strip.addEventListener("pointerover", (event) => { if (!timer && event.pointerType === "mouse") point(event); });
    strip.addEventListener("click", point);
    show(0);
  }

  /* On a phone the results stand below the settings: go and look. */
  document.addEventListener("click", (event) => {
    if (event.target.closest("#score") && innerWidth < 700)
      document.getElementById("progress")?.scrollIntoView({ behavior: "smooth", block: "start" });
  });

  const VIEWS = { tokens: tokenView, compare: compareView, plan: planView };

  function wake() {
    for (const view of document.querySelectorAll("[data-view]:not([data-ready])")) {
      view.dataset.ready = "yes";
      VIEWS[view.dataset.view](view, JSON.parse(view.dataset.payload));
    }
  }
  new MutationObserver(wake).observe(document.documentElement, { childList: true, subtree: true });
  wake();
})();

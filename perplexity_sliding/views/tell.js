/* What is told of a token: its chance, and what the model expected in its place. */

function guesses(alternatives, token, bits, rank) {
  const list = make("div", "ps-guesses"), most = Math.max(2 ** -bits, ...alternatives.map(([, share]) => share));
  const row = (guess, share, hit) => {
    const bar = make("i", "ps-bar"), track = make("span", "ps-track");
    bar.style.width = (100 * share / most).toFixed(1) + "%";
    track.append(bar);
    list.append(make("code", hit ? "ps-hit" : "", guess), track, make("span", hit ? "ps-hit" : "", percent(share)));
  };
  alternatives.forEach(([guess, share], n) => row(visible(guess), share, rank === n + 1));
  if (rank > alternatives.length) row(`${token} (${ordinal(rank)})`, 2 ** -bits, true);
  return list;
}

/* What is told of a token, a word, or a piece of several tokens. */
function teller(data, windowOf) {
  const { windows, bits } = data;
  function ofToken(token, name) {
    const isRead = token < data.num_context_tokens || windowOf[token] >= 0;
    if (bits[token] === null && isRead) return [make("p", "", "Part of the context: read, and not scored.")];
    if (bits[token] === null) return [make("p", "", "Not scored: no window has it among the tokens it predicts.")];
    const rank = data.rank?.[token], start = windows[windowOf[token]]?.[3], tops = data.alternatives?.[token];
    const seen = data.context[token] - (start ?? 0), guess = rank ? ` It was the model's ${rank === 1 ? "first" : ordinal(rank)} guess.` : "";
    return [
      make("p", "", `${bitsText(bits[token])} of surprise: ${oneIn(bits[token])}.${guess}`),
      make("p", "ps-note", `It saw ${seen ? tokens(seen) : "nothing"} before it${start ? `${seen ? " and" : " but"} the start marker` : ""}.${tops ? " It expected most:" : ""}`),
      ...(tops ? [guesses(tops, name, bits[token], rank)] : []),
    ];
  }
  function parts(first, last) {
    const list = make("ul", "ps-parts");
    bits.slice(first, last + 1).forEach((own, k) =>
      list.append(make("li", "", `“${visible(data.names[first + k])}”: ${own === null ? "not scored" : bitsText(own)}`)));
    return list;
  }
  function ofWord(range, scores) {
    if (!scores) return [make("p", "", "Part of the context: read, and not scored.")];
    if (!range) return [make("p", "", "A token reaches across an edge of this word, so that it has no score.")];
    const [surprisal, plain, entropy] = scores, [first, last] = range;
    if (surprisal === null) return [make("p", "", "Not scored: no window predicts all of its tokens."), parts(first, last)];
    return [
      make("p", "", `${bitsText(surprisal)} of surprise: ${oneIn(Math.max(0, surprisal))}.`),
      make("p", "", `Before it the model saw ${tokens(data.context[first])}, and what it expected had an entropy of ${bitsText(entropy)}.`),
      make("p", "ps-note", `Its ${tokens(last - first + 1)} alone: ${bitsText(plain)}. The space after a word counts towards that word.`),
      parts(first, last),
    ];
  }
  return (piece, range, scores) => {
    const head = make("p", "ps-piece");
    head.append(make("code", "", visible(piece)));
    if (scores !== undefined) return [head, ...ofWord(range, scores)];
    if (!range) return [head, make("p", "", "No token stands for this; it costs the model nothing.")];
    const [first, last] = range;
    if (first === last) return [head, ...ofToken(first, visible(piece))];
    const own = bits.slice(first, last + 1), bitsOfAll = own.reduce((a, b) => a + b, 0), tops = data.alternatives?.[first];
    const sum = own.includes(null) ? "" : `; together ${bitsText(bitsOfAll)}: ${oneIn(bitsOfAll)}`;
    return [
      head,
      make("p", "", `The tokenizer splits this into ${own.length} tokens${sum}.`),
      parts(first, last),
      ...(tops ? [make("p", "ps-note", "At the first of them it expected most:"), guesses(tops.slice(0, 3), "", 0)] : []),
    ];
  };
}

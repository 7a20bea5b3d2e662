/* What a model changes against its reference, piece by piece. */
function compareView(view, data) {
  const [model, reference] = data.models;
  const shown = explorer(view, describe);

  return shown;

  function describe(number, piece) {
    const head = make("p", "ps-piece"), own = data.pieces[number];
    head.append(make("code", "", visible(piece)));
    if (!own) return [head, make("p", "", "Not scored by both models.")];
    const [bits, before, kl, top, topBefore] = own, change = bits - before;
    const said = [
      `${reference}: ${bitsText(before)}, ${oneIn(before)}.`,
      `${model}: ${bitsText(bits)}, ${oneIn(bits)}.`,
      Math.abs(change) < 0.05 ? "No change to speak of." : `${bitsText(Math.abs(change))} ${change > 0 ? "worse" : "better"}.`,
    ];
    if (kl !== undefined) {
      said.push(`Its predictions differ by a KL divergence of ${kl} nats.`);
      said.push(top === topBefore ? `Both expected “${visible(top)}” most.` : `${reference} expected “${visible(topBefore)}” most, ${model} “${visible(top)}”.`);
    }
    return [head, ...said.map((sentence) => make("p", "", sentence))];
  }
}

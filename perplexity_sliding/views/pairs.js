/* A text scored twice: under two models, or under two strides. */

/* What a model changes against its reference, piece by piece. */
function compareView(view, data) {
  const [model, reference] = data.models;
  let colours = JSON.parse(view.querySelector(".ps-text").dataset.pieces).classes.split(" ");
  const byChange = colours, shown = explorer(view, describe, undefined, (number) => colours[number]);
  chooseColour(view, (choice) => { colours = choice === "change" ? byChange : data.kl_colours; shown.restyleAll(); });

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

/* The text under two strides: what a token gained by the context that only the smaller one shows it. */
function gainView(view, data) {
  explorer(view, (number, piece) => {
    const head = make("p", "ps-piece"), own = data.pieces[number];
    head.append(make("code", "", visible(piece)));
    if (!own) return [head, make("p", "", "Not scored under both strides.")];
    const [wide, narrow, little, more] = own;
    return [
      head,
      make("p", "", `${bitsText(wide)} with ${tokens(little)} of context, ${bitsText(narrow)} with ${fmt(more)}.`),
      make("p", "", Math.abs(wide - narrow) < 0.05 ? "The added context made no difference." :
        `The added context ${wide > narrow ? "saved" : "cost"} ${bitsText(Math.abs(wide - narrow))}.`),
    ];
  });
}

/* What one sends to others: a picture of the text and its number, the link; and what a researcher quotes. */
const SAID_MS = 2500, CARD = { width: 1200, height: 630, margin: 64 };

function save(name, blob) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const shortAddress = () => (location.host + location.pathname).replace(/\/$/, "");

/* Begin a picture in the page's own type and light colours. */
async function beginCard() {
  await document.fonts.load("600 40px Inter");
  const canvas = make("canvas"), { width, height } = CARD;
  canvas.width = width;
  canvas.height = height;
  const draw = canvas.getContext("2d");
  draw.fillStyle = "#ffffff";
  draw.fillRect(0, 0, width, height);
  draw.textBaseline = "alphabetic";
  return { canvas, draw };
}

function write(draw, text, x, y, size, { weight = 400, ink = "#1b2330", most } = {}) {
  draw.font = `${weight} ${size}px Inter, system-ui, sans-serif`;
  draw.fillStyle = ink;
  draw.fillText(text, x, y, most);
  return draw.measureText(text).width;
}

const finish = (canvas) => new Promise((done) => canvas.toBlob(done, "image/png"));

/* The light colours of the page, whatever it wears. */
function lightColours() {
  const dress = document.body.classList.contains("dark");
  document.body.classList.remove("dark");
  const looks = getComputedStyle(document.body), colours = {};
  for (let n = 0; n <= 5; n++) colours[`b${n}`] = n ? looks.getPropertyValue(`--ps-b${n}`).trim() : "#ffffff";
  document.body.classList.toggle("dark", dress);
  return colours;
}

/* The words of the text with the classes of their pieces, in lines that fit; the rest ends in an ellipsis. */
function layCard(draw, size, lines) {
  draw.font = `500 ${size}px Inter, system-ui, sans-serif`;
  const { pieces, before } = result.text;
  const parts = [];
  let at = 0;
  pieces.lengths.forEach((length, n) => {
    const piece = pieces.text.slice(Math.max(at, before), at + length);
    at += length;
    for (const part of piece.match(/\n|[^\S\n]+|\S+/g) ?? []) {
      const name = editor.colourOf(n, "surprise"), last = parts.at(-1);
      if (part.trim() && last?.part.trim() && last.name === name) last.part += part; // of one word
      else parts.push({ part, name });
    }
  });
  const rows = [[]], most = CARD.width - 2 * CARD.margin;
  let x = 0;
  for (let n = 0; n < parts.length; n++) {
    const { part, name } = parts[n];
    // A word is not broken between its pieces.
    let word = draw.measureText(part).width;
    for (let k = n + 1; part.trim() && k < parts.length && parts[k].part.trim(); k++) {
      word += draw.measureText(parts[k].part).width;
    }
    const begins = n === 0 || !parts[n - 1].part.trim();
    if (part === "\n" && !rows.at(-1).length) continue; // no empty lines
    if (part === "\n" || (begins && x && x + word > most)) {
      if (rows.length === lines) {
        rows.at(-1).push({ part: " …", name: "", x, width: 0 });
        return { rows, isCut: true };
      }
      rows.push([]);
      x = 0;
    }
    if (part === "\n" || (!part.trim() && !x)) continue;
    const width = draw.measureText(part).width;
    rows.at(-1).push({ part, name, x, width });
    x += width;
  }
  return { rows, isCut: false };
}

async function drawCard() {
  const { canvas, draw } = await beginCard(), colours = lightColours(), { margin, width, height } = CARD;
  const top = 28, room = 392, line = 1.5; // of the text
  let laid, size;
  for (size of [128, 108, 88, 76, 64, 52, 42, 34, 28]) {
    laid = layCard(draw, size, Math.floor(room / (line * size)));
    if (!laid.isCut) break;
  }
  let y = top + (room - line * size * laid.rows.length) / 2 + 1.1 * size;
  for (const row of laid.rows) {
    for (const { part, name, x, width: wide } of row) {
      draw.fillStyle = colours[name] ?? "#ffffff";
      draw.beginPath();
      draw.roundRect(margin + x, y - size, wide, size * 1.25, 6);
      if (part.trim() && colours[name]) draw.fill();
      write(draw, part, margin + x, y, size, { weight: 500, ink: name === "b5" ? "#ffffff" : "#1b2330" });
    }
    y += line * size;
  }
  const { about, figures, verdict } = wordsOf(result), { worst } = result, number = `${about} ${figures}`.trim();
  const wide = write(draw, number, margin, 512, number.length > 9 ? 48 : 80, { weight: 700 });
  write(draw, "perplexity", margin, 546, 26, { ink: "#566074" });
  const beside = margin + Math.max(wide, 140) + 48, most = width - margin - beside;
  write(draw, verdict, beside, 468, 30, { weight: 600, most });
  if (worst) write(draw, `Biggest surprise: “${worst.word}”, ${worst.odds}`, beside, 512, 30, { most });
  write(draw, `And your words? ${shortAddress()}`, margin, height - 40, 26, { ink: "#3b4fc4", weight: 600 });
  draw.fillStyle = "#a3271b";
  draw.fillRect(0, 0, width, 12);
  return finish(canvas);
}

/* --- a dialog with a picture, and what can be done with it --- */

function openDialog(id, title) {
  byId(id)?.remove();
  const dialog = make("dialog", "ps-view"), head = make("div", "head"), close = make("button", "", "✕");
  dialog.id = id;
  dialog.setAttribute("aria-label", title);
  close.type = "button";
  close.setAttribute("aria-label", `Close: ${title}`);
  close.addEventListener("click", () => dialog.close());
  pushStep({ dialog: id });
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (history.state?.dialog) history.back();
  });
  const body = make("div", "body");
  head.append(make("h2", "", title), make("span", "count quiet"), close);
  dialog.append(head, body);
  document.body.append(dialog);
  editor.stop();
  dialog.showModal();
  return { dialog, body };
}

function button(words, act, name = "") {
  const made = make("button", name, words);
  made.type = "button";
  made.addEventListener("click", () => act(made));
  return made;
}

async function copy(text, made) {
  const before = made.textContent;
  try {
    await navigator.clipboard.writeText(text);
    made.textContent = "Copied";
  } catch {
    const words = make("p", "told", text);
    made.parentElement.after(words);
    getSelection().selectAllChildren(words);
    made.textContent = "Selected: copy it";
  }
  setTimeout(() => { made.textContent = before; }, SAID_MS);
}

/* One tap sends text and picture to another app, where the device can; else they are saved and copied.
   The picture may still be drawn: the buttons are there from the start, and none moves. */
function sending(drawn, text, name) {
  const row = make("p", "row"), file = (parts) => [new File(parts, name, { type: "image/png" })];
  if (navigator.canShare?.({ files: file([]) })) {
    const send = async () => navigator.share({ text, files: file([await drawn]) });
    row.append(button("Send", () => send().catch(() => {}), "main"));
  }
  row.append(
    button("Copy the message", (made) => copy(text, made), row.firstChild ? "" : "main"),
    button("Save the picture", async () => save(name, await drawn)),
  );
  return row;
}

byId("open-share").addEventListener("click", async () => {
  const { body } = openDialog("share", "Share"), image = make("img", "card");
  body.append(image); // its place is kept while it is drawn
  const drawn = drawCard(), link = await address();
  const { worst } = result, odd = worst ? ` The biggest surprise: “${worst.word}”, ${worst.odds}.` : "";
  const { about, figures } = wordsOf(result), number = `${about} ${figures}`.trim();
  const text = `A language model finds ${shown ? "this text" : "my words"} this surprising: perplexity ${number}.${odd} And yours? ${link}`;
  drawn.then((picture) => { image.src = URL.createObjectURL(picture); });
  image.alt = `${area.value.slice(0, 200)} ${number}.${odd}`;
  const carries = new URL(link).hash
    ? "The link shows your words to whoever opens it; no server keeps them."
    : "The text is too long for a link: the link has the settings only.";
  body.append(sending(drawn, text, "perplexity.png"), make("p", "quiet", carries));
  body.querySelector("button").focus();
});

/* --- for a paper --- */

const citing = new Line("cite", busyIn(byId("citation")));
byId("cite").addEventListener("click", async () => {
  const taken = await citing.ask(request());
  if (!taken) return;
  const part = (title, words) => {
    const row = make("div", "cited"), code = make("pre", "", words);
    row.append(make("b", "", title), button("Copy", (made) => copy(words, made)));
    code.tabIndex = 0;
    return [row, code];
  };
  const digests = Object.entries(taken.digests).map(([name, digest]) => `${digest}  ${name}.txt`);
  const files = make("p", "row");
  for (const [name, content] of Object.entries(taken.files)) {
    files.append(button(name, () => save(name, new Blob([content]))));
  }
  byId("citation").replaceChildren(
    ...part("Sentence", taken.sentence),
    ...part("Signature", taken.signature),
    ...part("SHA-256", digests.join("\n")),
    ...part("BibTeX", taken.bibtex),
    ...part("Python", taken.python),
    ...part("Shell", taken.shell),
    files,
  );
  byId("citation").scrollIntoView({ block: "nearest", behavior: still() ? "auto" : "smooth" });
});

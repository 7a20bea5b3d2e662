/* Pictures to take along: the card of a result, and every chart. */
const LOOKS = ["fill", "fill-opacity", "opacity", "stroke", "stroke-width", "vector-effect"];
const SAID_MS = 2500; // that a button says what it did
const CLEAR = "rgba(0, 0, 0, 0)";

function save(name, blob) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const svgFile = (source) => new Blob([source], { type: "image/svg+xml" });

async function pngFile(source) {
  const image = new Image(), canvas = make("canvas");
  image.src = URL.createObjectURL(svgFile(source));
  await image.decode();
  canvas.width = 2 * image.naturalWidth; // for screens with small pixels
  canvas.height = 2 * image.naturalHeight;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/* The drawer of a result. */
function shareView(view, { picture }) {
  const link = view.querySelector(".ps-link"), life = signal(view);
  link.textContent = link.href; // whole, with this page's own address
  view.querySelector("img").src = "data:image/svg+xml," + encodeURIComponent(picture);
  view.querySelector("[data-save=png]").addEventListener("click", async () => save("card.png", await pngFile(picture)), life);
  view.querySelector("[data-save=svg]").addEventListener("click", () => save("card.svg", svgFile(picture)), life);
  for (const button of view.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button, link.href), life);
}
async function copy(button, link) {
  const source = button.parentElement.querySelector("[data-text]"), isFriend = button.closest(".ps-friend");
  const words = source.href ?? source.textContent + (isFriend ? `\n${link}` : "");
  try { await navigator.clipboard.writeText(words); button.textContent = "Copied"; }
  catch { getSelection().selectAllChildren(source); button.textContent = "Selected: copy it"; }
  setTimeout(() => { button.textContent = "Copy"; }, SAID_MS);
}

/* A chart as a file by itself: its shapes, lines and words where they stand on the page. */
function chartFile(figure) {
  const frame = figure.getBoundingClientRect(), parts = [], { format } = new Intl.NumberFormat("en", { useGrouping: false, maximumFractionDigits: 2 });
  const add = (tag, values, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, typeof value === "number" ? format(value) : value);
    element.textContent = text;
    parts.push(element);
    return element;
  };
  add("rect", { width: frame.width, height: frame.height, fill: getComputedStyle(document.body).backgroundColor });
  for (const part of figure.querySelectorAll("span")) {
    const box = part.getBoundingClientRect(), { backgroundColor, borderRadius, borderTopWidth, borderTopColor, borderLeftWidth, borderLeftColor } = getComputedStyle(part);
    const x = box.x - frame.x, y = box.y - frame.y, radius = { rx: borderRadius.endsWith("%") ? box.width / 2 : parseFloat(borderRadius) || 0 };
    if (backgroundColor !== CLEAR) add("rect", { x, y, width: box.width, height: box.height, fill: backgroundColor, ...radius });
    else if (parseFloat(borderTopWidth)) add("rect", { x, y, width: box.width, height: 1, fill: borderTopColor });
    else if (parseFloat(borderLeftWidth)) add("rect", { x, y, width: 1, height: box.height, fill: borderLeftColor });
  }
  for (const plot of figure.querySelectorAll("svg")) {
    const box = plot.getBoundingClientRect(), { width, height } = plot.viewBox.baseVal;
    const group = add("g", { transform: `translate(${format(box.x - frame.x)} ${format(box.y - frame.y)}) scale(${box.width / width} ${box.height / height})` });
    for (const shape of plot.children) {
      const copy = shape.cloneNode(), looks = getComputedStyle(shape);
      copy.removeAttribute("class");
      for (const name of LOOKS) copy.setAttribute(name, looks.getPropertyValue(name));
      group.append(copy);
    }
  }
  const words = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (words.nextNode()) {
    range.selectNode(words.currentNode);
    const box = range.getBoundingClientRect(), { color, fontSize, fontFamily, fontWeight } = getComputedStyle(words.currentNode.parentNode);
    if (!box.width || words.currentNode.parentNode.closest("button")) continue; // a hint that is not shown
    const place = { x: box.x - frame.x, y: box.bottom - frame.y - 0.3 * parseFloat(fontSize) };
    add("text", { ...place, fill: color, "font-size": fontSize, "font-family": fontFamily, "font-weight": fontWeight }, words.currentNode.data);
  }
  const file = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["width", frame.width], ["height", frame.height], ["viewBox", `0 0 ${frame.width} ${frame.height}`]]) file.setAttribute(name, value);
  file.append(...parts);
  return new XMLSerializer().serializeToString(file);
}

function offerChart(figure) {
  const button = make("button", "ps-button ps-save", "Save as SVG");
  button.type = "button";
  button.addEventListener("click", () => save("chart.svg", svgFile(chartFile(figure))));
  figure.append(button);
}

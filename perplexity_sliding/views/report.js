/* A report: texts that are pointed at, without the page around them. */

/* A text with the panel of its tokens; its window is marked under the token that is pointed at. */
function readingView(view, data) {
  const { windows, bits, segments } = data, windowOf = new Array(bits.length).fill(-1);
  // A token that several windows score has the columns of the first.
  windows.forEach(([, first, end], n) => { for (let t = first; t < end; t++) if (windowOf[t] < 0) windowOf[t] = n; });
  const tell = teller(data, windowOf), classes = JSON.parse(view.querySelector(".ps-text").dataset.pieces).classes.split(" ");
  let now = -1;
  const shown = explorer(view, (n, piece) => tell(piece, segments[n]), moved, look);
  return shown;

  function look(n) {
    const [from, fresh, end] = windows[now] ?? [0, 0, 0], range = segments[n];
    if (!range || range[0] < from || range[0] >= end) return classes[n];
    return `${classes[n]} ${range[0] < fresh ? "in-context" : "in-new"}`;
  }
  function moved(n) {
    const at = segments[n] ? windowOf[segments[n][0]] : -1;
    if (at === now) return;
    now = at;
    shown.restyleAll();
  }
}

const sheets = []; // what is to be drawn whole before it is printed
const VIEWS = { reading: readingView, compare: compareView };

function begin() {
  for (const view of document.querySelectorAll("[data-view]")) {
    revive(view);
    sheets.push(VIEWS[view.dataset.view](view, JSON.parse(view.dataset.payload)));
  }
}
const dark = matchMedia("(prefers-color-scheme: dark)");
const wear = (isDark = dark.matches) => document.documentElement.classList.toggle("dark", isDark);
dark.addEventListener("change", () => wear());
addEventListener("beforeprint", () => { wear(false); for (const sheet of sheets) sheet.drawAll(); });
addEventListener("afterprint", () => wear());
wear();
addEventListener("DOMContentLoaded", begin);

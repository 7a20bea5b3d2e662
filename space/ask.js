/* What the page asks of the server: over gradio's queue, each request as a session of its own, so that
   closing its stream of answers is all that it takes to stop it. */
const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const byId = (id) => document.getElementById(id);
const GONE =
  "This page cannot reach its server, and goes on trying. What you wrote is still here, and is scored then.";
const FULL = "Too many people are here just now. Please try again in a minute.";
// A server that is there answers at once, and then says at least every 15 seconds that it still is.
const RETRY_MS = 4000, LATE_MS = 600, SILENT_MS = 5000, LOST_MS = 25_000;

class Refusal extends Error {}

/* Yield the messages of a stream of server-sent events. */
async function* messages(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part.replace(/^data: /, ""));
  }
}

/* Ask a function of the page; `told` hears of each sign of life, of the place in the queue and of the progress. */
async function ask(name, asked, signal, told) {
  const session = Math.random().toString(36).slice(2);
  const body = JSON.stringify({
    data: [asked], fn_index: PAGE.calls[name], session_hash: session, simple_format: true,
  });
  const headers = { "Content-Type": "application/json" };
  const joined = await fetch("gradio_api/queue/join", { method: "POST", headers, body, signal });
  if ([502, 504].includes(joined.status)) throw new Error("nobody is behind the gateway");
  if (!joined.ok) throw new Refusal(joined.status === 503 ? FULL : `The server said ${joined.status}.`);
  const stream = await fetch(`gradio_api/queue/data?session_hash=${session}`, { signal });
  let last = {}, isDone = false;
  for await (const { msg, rank, output } of messages(stream)) {
    told();
    if (msg === "estimation" && rank > 0) told(`You are number ${rank + 1} in the queue.`, null);
    last = output?.data?.[0] ?? last;
    if (last.said) told(last.said, last.share);
    isDone = msg === "process_completed" || msg === "unexpected_error";
    if (isDone) break;
  }
  if (!isDone) throw new Error("the server went away");
  if (last.refused) throw new Refusal(last.refused);
  if (!last.result) throw new Refusal("The answer did not arrive. Please try again.");
  return last.result;
}

/* One thing that is asked again and again: the newest request counts, and stops the one before. */
class Line {
  constructor(name, busy) {
    this.name = name;
    this.busy = busy; // is told what happens, "" for nothing
    this.control = null;
  }

  stop() {
    this.control?.abort();
    this.control = null;
    clearTimeout(this.retry);
    this.busy("");
  }

  /* Return the result; null where a newer request came, or there is none.  A server that is gone is
     asked again and again; `isGone`: that was said already. */
  async ask(asked, isGone = false) {
    const control = new AbortController();
    if (isGone) this.control.abort();
    else this.stop();
    this.control = control;
    const told = (...words) => control === this.control && this.busy(...words);
    const lose = () => setTimeout(() => control.abort(), LOST_MS);
    const late = isGone ? 0 : setTimeout(told, LATE_MS, "Reading…");
    const silent = setTimeout(() => { if (!isGone) told(GONE, null, true); isGone = true; }, SILENT_MS);
    let lost = lose(), result = null, failure = null;
    const heard = (words, share) => {
      clearTimeout(silent);
      clearTimeout(lost);
      lost = lose();
      if (words ?? isGone) told(words ?? "Reading…", share);
      isGone = false;
    };
    try {
      result = await ask(this.name, asked, control.signal, heard);
    } catch (error) {
      failure = error;
    }
    for (const timer of [late, silent, lost]) clearTimeout(timer);
    if (control !== this.control) return null;
    if (failure && !(failure instanceof Refusal)) {
      if (!isGone) this.busy(GONE, null, true);
      await new Promise((go) => { this.retry = setTimeout(go, RETRY_MS); });
      return control === this.control ? this.ask(asked, true) : null;
    }
    this.busy(failure?.message ?? "", null, Boolean(failure));
    return result;
  }
}

/* Make a function that shows words in an element, with a bar where a share is known. */
function busyIn(element) {
  return (words, share = null, isAlert = false) => {
    element.replaceChildren(words);
    element.classList.toggle("alert", isAlert);
    element.setAttribute("role", isAlert ? "alert" : "status");
    if (share === null || !words) return;
    const bar = make("progress");
    bar.max = 1;
    bar.value = share;
    bar.setAttribute("aria-label", "Part that is read");
    element.append(bar);
  };
}

/* What the page asks of the server: over gradio's queue, each request as a session of its own, so that
   closing its stream of answers is all that it takes to stop it. */
const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const byId = (id) => document.getElementById(id);
const GONE =
  "The server does not answer. What you wrote is still here, and is scored as soon as it is back.";
const FULL = "Too many people are here just now. Please try again in a minute.";
const RETRY_MS = 4000;

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

/* Ask a function of the page; `told` hears of the place in the queue and of the progress. */
async function ask(name, asked, signal, told) {
  const session = Math.random().toString(36).slice(2);
  const body = JSON.stringify({
    data: [asked], fn_index: PAGE.calls[name], session_hash: session, simple_format: true,
  });
  const headers = { "Content-Type": "application/json" };
  const joined = await fetch("gradio_api/queue/join", { method: "POST", headers, body, signal });
  if (!joined.ok) throw new Refusal(joined.status === 503 ? FULL : `The server said ${joined.status}.`);
  const stream = await fetch(`gradio_api/queue/data?session_hash=${session}`, { signal });
  let last = {};
  for await (const { msg, rank, output } of messages(stream)) {
    if (msg === "estimation" && rank > 0) told(`You are number ${rank + 1} in the queue.`, null);
    last = output?.data?.[0] ?? last;
    if (last.said) told(last.said, last.share);
    if (msg === "process_completed" || msg === "unexpected_error") break;
  }
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

  /* Return the result; null where a newer request came, or there is none. */
  async ask(asked) {
    this.stop();
    const control = (this.control = new AbortController());
    const told = (words, share) => control === this.control && this.busy(words, share);
    const late = setTimeout(() => told("Reading…", null), 600);
    try {
      const result = await ask(this.name, asked, control.signal, told);
      if (control !== this.control) return null;
      this.busy("");
      return result;
    } catch (error) {
      if (control !== this.control) return null;
      if (error instanceof Refusal) {
        this.busy(error.message, null, true);
        return null;
      }
      this.busy(GONE, null, true);
      await new Promise((go) => { this.retry = setTimeout(go, RETRY_MS); });
      return control === this.control ? this.ask(asked) : null;
    } finally {
      clearTimeout(late);
    }
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

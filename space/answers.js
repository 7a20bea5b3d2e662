/* Gradio's server ends its stream of answers with the last answer that is due.  A request that is sent just
   then takes the stream to be open, and its answer never arrives.  So the stream that gradio reads stays
   open here, and the server's is opened whenever an answer is due. */
const fetchNext = window.fetch;
const BROKEN = 'data: {"msg": "broken_connection", "message": "Connection errored out."}\n\n';
const due = new Set(); // ids of the requests whose answer is still to come
let answers = null;

class Answers {
  constructor(request) {
    this.request = request;
    this.connected = false;
    this.body = new ReadableStream({ start: (gradio) => { this.gradio = gradio; } });
  }

  pass(message) {
    this.gradio.enqueue(new TextEncoder().encode(message));
  }

  /* Pass on what the server says until it ends its stream, and connect again if an answer became due meanwhile. */
  async connect(response) {
    this.connected = true;
    const earlier = [...due];
    try {
      await this.read(response ?? await fetchNext(...this.request));
      for (const id of earlier) due.delete(id); // the server knows nothing of them any more
    } catch (error) {
      due.clear();
      console.error(error);
      this.pass(BROKEN);
    }
    this.connected = false;
    if (due.size) this.connect();
  }

  async read(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) throw new TypeError("The stream of answers broke off.");
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages) {
        const [, kind, id] = /^data: \{"msg":"(\w+)","event_id":"?(\w+)/.exec(message) ?? [];
        if (kind === "close_stream") return;
        if (kind === "process_completed") due.delete(id);
        this.pass(`${message}\n\n`);
      }
    }
  }
}

async function openAnswers(...request) {
  const response = await fetchNext(...request);
  if (!response.ok) return response;
  answers = new Answers(request);
  answers.connect(response);
  return new Response(answers.body, { headers: response.headers });
}

async function expectAnswer(response) {
  due.add((await response.json()).event_id);
  if (answers && !answers.connected) answers.connect();
}

window.fetch = async (resource, options) => {
  const { pathname } = new URL(resource.url ?? resource, location.href);
  if (pathname.endsWith("/queue/data")) return openAnswers(resource, options);
  const response = await fetchNext(resource, options);
  if (pathname.endsWith("/queue/join") && response.ok) await expectAnswer(response.clone());
  return response;
};

// Stories with `@ag-ui/client` under Node.js (`client_program.py` has the protocol). The first argument is the
// installed package: the same stories are told with each release.
import { createInterface } from "node:readline";

const { HttpAgent, runHttpRequest, transformHttpEventStream } = await import(process.argv[2]);

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

// A connection that is cut rejects a promise of the client's that nobody holds, which would end the program.
process.on("unhandledRejection", () => {});
// The client warns of each event and field that it does not know: there must be none.
const warnings = [];
console.warn = (...said) => warnings.push(said.map(String).join(" ").slice(0, 300));

class Page extends HttpAgent {
  // What the documentation of the server tells users to write.
  connect(input) {
    const after = this.cursor === undefined ? "" : `&after=${this.cursor}`;
    const version = input.protocolVersion === undefined ? "" : `&protocolVersion=${input.protocolVersion}`;
    const url = `${this.url}/connect?threadId=${encodeURIComponent(input.threadId)}${after}${version}`;
    const asked = { headers: this.headers };
    // 0.0.47 asks by itself.
    const answers = runHttpRequest.length === 2 ? runHttpRequest(url, asked) : runHttpRequest(() => fetch(url, asked));
    return transformHttpEventStream(answers);
  }
}

const pages = new Map();

function pageOf({ baseURL, apiKey }, { page = "page", agent, thread }) {
  if (!pages.has(page)) {
    const headers = { Authorization: `Bearer ${apiKey}` };
    pages.set(page, new Page({ url: `${baseURL}/ag-ui/${agent}`, headers, threadId: thread }));
  }
  return pages.get(page);
}

// Runs or joins, and tells what the page has then.
async function heard(page, how) {
  const kinds = [];
  const errors = [];
  let finished = null;
  warnings.length = 0;
  const subscriber = {
    onEvent: ({ event }) => void kinds.push(event.type),
    onTextMessageContentEvent: ({ event }) => void say({ note: event.delta }),
    onRunFinishedEvent: (told) => void (finished = { outcome: told.outcome ?? null, pending: told.pendingToolCallIds ?? null }),
    onRunErrorEvent: ({ event }) => void errors.push({ code: event.code ?? null, message: event.message }),
  };
  let thrown = null;
  try {
    await how(subscriber);
  } catch (error) {
    thrown = `${error.name}: ${error.message}`;
  }
  const interrupts = page.pendingInterrupts ?? [];
  return { messages: page.messages, kinds, errors, finished, thrown, interrupts, warnings: [...warnings] };
}

async function run(server, given) {
  const page = pageOf(server, given);
  for (const message of given.messages ?? []) page.addMessage(message);
  const { tools, resume, runId, forwardedProps } = given;
  return heard(page, (subscriber) => page.runAgent({ tools, resume, runId, forwardedProps }, subscriber));
}

async function connect(server, given) {
  const page = pageOf(server, given);
  page.cursor = given.after;
  if (given.messages !== undefined) page.setMessages(given.messages);
  return heard(page, (subscriber) => page.connectAgent({}, subscriber));
}

// Leaves the server's stream at the first event of a type: the page of a user who closes the tab.
async function abandoned(server, given) {
  const page = pageOf(server, given);
  for (const message of given.messages ?? []) page.addMessage(message);
  const onEvent = ({ event }) => void (event.type === given.at && page.abortRun());
  return heard(page, (subscriber) => page.runAgent({}, { ...subscriber, onEvent }));
}

// What the client makes of streams that no server has sent.
async function reads(_server, { streams }) {
  const told = [];
  const { fetch } = globalThis; // 0.0.47 takes no other
  for (const { messages, body } of streams) {
    globalThis.fetch = async () => new Response(body, { headers: { "content-type": "text/event-stream" } });
    const page = new HttpAgent({ url: "http://nowhere", fetch: globalThis.fetch, initialMessages: messages });
    const { thrown, warnings } = await heard(page, (subscriber) => page.runAgent({}, subscriber));
    told.push({ thrown, warnings, messages: page.messages });
  }
  globalThis.fetch = fetch;
  return told;
}

const STORIES = { run, connect, abandoned, reads };

for await (const line of createInterface({ input: process.stdin })) {
  const [name, baseURL, apiKey, given] = JSON.parse(line);
  const server = { baseURL: baseURL.replace(/\/openai\/v1$/, ""), apiKey };
  try {
    say({ result: await STORIES[name](server, given) });
  } catch (error) {
    say({ error: String(error?.stack ?? error) });
  }
}
process.exit(0);

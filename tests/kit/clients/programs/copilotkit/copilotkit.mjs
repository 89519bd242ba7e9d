// Stories with CopilotKit's client under Node.js, without its runtime (`client_program.py` has the protocol).
// `@copilotkit/core` makes every request of `@copilotkit/react-core` and of the packages for other frameworks.
import { createInterface } from "node:readline";

// On a server that renders pages, the client asks nothing.
globalThis.window = globalThis;
const { CopilotKitCore, ɵInterruptState: InterruptState } = await import("@copilotkit/core");

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

process.on("unhandledRejection", () => {});
// The program's own lines go to the standard output, and the client's to nobody but the story.
const warnings = [];
console.log = console.info = console.debug = () => {};
console.warn = console.error = (...said) => warnings.push(said.map(String).join(" ").slice(0, 300));

const pages = new Map();

class Page {
  constructor({ baseURL, apiKey }, { agent, thread }, tools) {
    this.agentId = agent;
    this.thread = thread;
    this.kinds = [];
    this.errors = [];
    this.interrupts = [];
    const headers = { Authorization: `Bearer ${apiKey}` };
    this.core = new CopilotKitCore({ runtimeUrl: `${baseURL}/ag-ui`, headers, tools });
    this.core.subscribe({ onError: ({ code, error }) => void this.errors.push({ code, message: error.message }) });
  }

  // What a page does when it is opened: it asks which agents there are, and joins the conversation.
  async open() {
    while (this.core.getAgent(this.agentId)?.headers === undefined) {
      if (this.core.runtimeConnectionStatus === "error") return;
      await new Promise((resolve) => {
        const { unsubscribe } = this.core.subscribe({
          onRuntimeConnectionStatusChanged: () => (unsubscribe(), resolve()),
        });
      });
    }
    this.agent = this.core.getAgent(this.agentId);
    this.agent.threadId = this.thread;
    this.agent.subscribe({
      onEvent: ({ event }) => void this.kinds.push(event.type),
      onTextMessageContentEvent: ({ event }) => void say({ note: event.delta }),
      onRunErrorEvent: ({ event }) => void this.errors.push({ code: event.code ?? null, message: event.message }),
      // As `useInterrupt` keeps them.
      onRunFinishedEvent: ({ outcome, interrupts, input }) => {
        this.interrupts = outcome === "interrupt" ? interrupts : [];
        this.interrupted = input.runId;
      },
    });
    await this.core.connectAgent({ agent: this.agent });
  }

  told() {
    const { kinds, errors } = this;
    [this.kinds, this.errors] = [[], []];
    const messages = this.agent?.messages ?? [];
    return { messages, kinds, errors, interrupts: this.interrupts, warnings: warnings.splice(0), thrown: null };
  }
}

// What a schema of any library comes to, for the one tool of these stories.
const PAINTED = {
  "~standard": {
    version: 1,
    vendor: "stories",
    validate: (value) => ({ value }),
    jsonSchema: { input: () => ({ type: "object", properties: { color: { type: "string" } } }) },
  },
};

async function open(server, { page, tools, ...given }) {
  const used = [];
  const handled = (tools ?? []).map(({ result, ...tool }) => ({
    ...tool,
    parameters: PAINTED,
    handler: async (args) => (used.push(args), result),
  }));
  const made = new Page(server, given, handled);
  pages.set(page, made);
  await made.open();
  return { ...made.told(), agents: Object.keys(made.core.agents), status: made.core.runtimeConnectionStatus };
}

async function run(_server, { page, messages }) {
  const shown = pages.get(page);
  for (const message of messages) shown.agent.addMessage(message);
  await shown.core.runAgent({ agent: shown.agent });
  return shown.told();
}

// What `useInterrupt` does with the answers of a user: it adds them as results of the calls as well, and names the run
// that asked.
async function resolve(_server, { page, payload }) {
  const shown = pages.get(page);
  const state = new InterruptState();
  state.setStandard(shown.interrupts);
  let decision;
  for (const { id } of shown.interrupts) {
    decision = payload === null ? state.cancel(id) : state.resolve(payload, id);
  }
  for (const { toolCallId, content } of decision.toolResults) {
    shown.agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId, content });
  }
  await shown.core.runAgent({ agent: shown.agent, resume: decision.resume, runId: shown.interrupted });
  return shown.told();
}

// Presses the button in the middle of an answer.
async function stopped(_server, { page, messages }) {
  const shown = pages.get(page);
  const { unsubscribe } = shown.agent.subscribe({
    onTextMessageContentEvent: () => (unsubscribe(), void shown.core.stopAgent({ agent: shown.agent })),
  });
  return run(_server, { page, messages });
}

const STORIES = { open, run, resolve, stopped };

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

// Pages with the AI SDK, under Node.js (`client_program.py` has the protocol). The argument is the major version of
// `ai`. The chat is `AbstractChat`, which `useChat` wraps.
//
// A story is a page: it has a chat, performs acts one after the other, and tells what it has in the end.
import { createInterface } from "node:readline";

const ai = await import({ 5: "ai5", 6: "ai6", 7: "ai" }[process.argv[2]]);
const QUIET_MS = 150;

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const copy = (value) => structuredClone(value);
const textOf = (message) =>
  (message?.parts ?? [])
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("");

class State {
  status = "ready";
  error = undefined;
  constructor(messages, changed) {
    this.messages = copy(messages);
    this.changed = changed;
  }
  pushMessage = (message) => this.set([...this.messages, copy(message)]);
  popMessage = () => this.set(this.messages.slice(0, -1));
  replaceMessage = (index, message) => this.set(this.messages.map((one, at) => (at === index ? copy(message) : one)));
  snapshot = copy;
  set(messages) {
    this.messages = messages;
    this.changed(messages.at(-1));
  }
}

class PlainChat extends ai.AbstractChat {
  constructor({ messages, changed, ...init }) {
    super({ ...init, state: new State(messages, changed) });
  }
}

// What a page is made of, whichever way it shows its chat.
function partsOf({ base, key, given }) {
  const seen = { finishes: [], errors: [], requests: [], deltas: 0 };
  const transport = new ai.DefaultChatTransport({
    api: `${base}/ai-sdk/${given.agent}/chat${given.sdk ? `?sdk=${given.sdk}` : ""}`,
    headers: async () => ({ authorization: `Bearer ${key}` }),
    body: given.body ?? {},
    fetch: async (url, init) => {
      if (given.stream !== undefined) return new Response(given.stream);
      const answer = await fetch(url, init);
      seen.requests.push([init.method, answer.status, answer.headers.get("x-holdfast-error")]);
      if (given.tells) say({ note: init.method });
      return answer;
    },
  });
  const init = {
    id: given.id ?? "chat",
    transport,
    sendAutomaticallyWhen:
      given.sends === "approvals"
        ? ai.lastAssistantMessageIsCompleteWithApprovalResponses
        : given.sends === "results"
          ? ai.lastAssistantMessageIsCompleteWithToolCalls
          : undefined,
    onFinish: ({ message, messages, ...rest }) => seen.finishes.push(rest),
    onError: (error) => seen.errors.push(error.message),
    onToolCall: ({ toolCall }) => {
      if (!toolCall.dynamic && given.output !== undefined) {
        // Not awaited: the stream would wait for itself.
        seen.chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: given.output });
      }
    },
  };
  return { seen, init };
}

async function messagesOf({ base, key, given }) {
  const query = given.sdk ? `?sdk=${given.sdk}` : "";
  const path = `${base}/ai-sdk/${given.agent}/chat/${encodeURIComponent(given.id)}${query}`;
  const answer = await fetch(path, { headers: { authorization: `Bearer ${key}` } });
  return (await answer.json()).messages;
}

async function settled(chat) {
  for (let quiet = 0; quiet < QUIET_MS; quiet += 10) {
    await pause(10);
    if (chat.status !== "ready" && chat.status !== "error") quiet = 0;
  }
}

const waiting = (chat) =>
  chat.messages.at(-1).parts.filter((part) => part.state === "approval-requested");

const ACTS = {
  say: (chat, _, text, id) =>
    chat.sendMessage(id ? { id, role: "user", parts: [{ type: "text", text }] } : { text }),
  send: (chat, _, parts) => chat.sendMessage({ role: "user", parts }),
  again: (chat) => chat.regenerate(),
  resume: (chat) => chat.resumeStream(),
  decide: async (chat, _, approved, reason) => {
    for (const part of waiting(chat)) {
      await chat.addToolApprovalResponse({ id: part.approval.id, approved, reason });
    }
  },
  // Hangs up behind so many changes of the answer's text.
  leave: async (chat, seen, text, behind) => {
    const said = chat.sendMessage({ text });
    while (seen.deltas < behind) await pause(5);
    await chat.stop();
    await said;
  },
  // Hangs up at the answer's first part of a kind, or of a state; the message itself is a text, too.
  leaveAt: async (chat, _, text, at) => {
    const said = chat.sendMessage({ text });
    const shown = (part) => part.type === at || part.state === at;
    const answer = () => chat.messages.at(-1)?.role === "assistant" && chat.messages.at(-1);
    while (!answer() || !answer().parts.some(shown)) await pause(5);
    await chat.stop();
    await said;
  },
};

async function page(base, key, given) {
  const { seen, init } = partsOf({ base, key, given });
  let said = "";
  const changed = (message) => {
    const text = message?.role === "assistant" ? textOf(message) : "";
    if (text !== said) {
      said = text;
      seen.deltas += 1;
      say({ note: text });
    }
  };
  const messages = given.loads ? await messagesOf({ base, key, given }) : (given.messages ?? []);
  const chat = new PlainChat({ ...init, messages, changed });
  seen.chat = chat;
  for (const [act, ...rest] of given.acts) {
    await ACTS[act](chat, seen, ...rest);
    await settled(chat);
  }
  const { finishes, errors, requests } = seen;
  return { messages: chat.messages, status: chat.status, finishes, errors, requests };
}

for await (const line of createInterface({ input: process.stdin })) {
  const [, base, key, given] = JSON.parse(line);
  try {
    say({ result: await page(base, key, given) });
  } catch (error) {
    say({ error: String(error?.stack ?? error) });
  }
}
// Connections that are kept open would keep it alive.
process.exit(0);

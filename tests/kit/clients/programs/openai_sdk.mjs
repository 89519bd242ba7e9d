// Stories with OpenAI's SDK for TypeScript, under Node.js (`client_program.py` has the protocol). The stories of
// `openai_sdk.py`, under the same names and with the same results.
import { createInterface } from "node:readline";
import OpenAI, { APIError } from "openai";

const WEATHER = {
  type: "function",
  name: "weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  strict: false,
};
const COUNT = {
  type: "json_schema",
  name: "Count",
  schema: { type: "object", properties: { n: { type: "integer" } }, required: ["n"], additionalProperties: false },
  strict: true,
};
const NO_RESPONSE = `resp_${"0".repeat(32)}`;
const NO_AGENT = "agent-00000000-0000-4000-8000-000000000000";

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const numbersOf = (events) => events.map((event) => event.sequence_number);
const isDelta = (event) => event.type === "response.output_text.delta";
const textOf = (events) =>
  events
    .filter(isDelta)
    .map((event) => event.delta)
    .join("");
const callsOf = (response) => response.output.filter((item) => item.type === "function_call");

async function all(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}

async function plain(client, fields) {
  const response = await client.responses.create(fields);
  const again = await client.responses.retrieve(response.id);
  const same = JSON.stringify(again) === JSON.stringify(response);
  return { id: response.id, status: response.status, text: response.output_text, same };
}

// Reads with the SDK's helper, which puts the response together from the events and checks them.
async function followed(client, fields) {
  const stream = client.responses.stream(fields);
  const heard = [];
  stream.on("response.output_text.delta", (event) => heard.push(event.delta));
  const events = await all(stream);
  const response = await stream.finalResponse();
  const kept = await client.responses.retrieve(response.id);
  if (heard.join("") !== textOf(events)) throw new Error("the listener heard another text");
  return {
    id: response.id,
    text: response.output_text,
    status: response.status,
    numbers: numbersOf(events),
    same: JSON.stringify([kept.output_text, kept.output.length]) ===
      JSON.stringify([response.output_text, response.output.length]),
  };
}

// Begins in the background, and drops the connection behind the second piece of text.
async function begun(client, fields) {
  const stream = await client.responses.create({ ...fields, background: true, stream: true });
  const seen = [];
  for await (const event of stream) {
    seen.push(event);
    if (seen.filter(isDelta).length === 2) break;
  }
  stream.controller.abort();
  return { id: seen[0].response.id, text: textOf(seen), numbers: numbersOf(seen) };
}

async function resumed(client, { response_id, after }) {
  return summary(await client.responses.retrieve(response_id, { stream: true, starting_after: after }));
}

async function summary(stream) {
  const events = [];
  for await (const event of stream) {
    events.push(event);
    if (isDelta(event)) say({ note: event.delta });
  }
  const last = events.at(-1);
  const { id, status } = last.response;
  return { id, text: textOf(events), numbers: numbersOf(events), last: last.type, status };
}

// Reads a response in the background from its beginning to its end.
async function watched(client, fields) {
  return summary(await client.responses.create({ ...fields, background: true, stream: true }));
}

// Cancels in the middle of the stream, and reads on.
async function cancelled(client, fields) {
  const stream = await client.responses.create({ ...fields, background: true, stream: true });
  const seen = [];
  const statuses = [];
  for await (const event of stream) {
    seen.push(event);
    if (isDelta(event) && statuses.length === 0) {
      for (const _ of [1, 2]) statuses.push((await client.responses.cancel(seen[0].response.id)).status);
    }
  }
  const last = seen.at(-1);
  return { statuses, last: last.type, status: last.response.status };
}

// Functions over three turns, each streamed with the helper.
async function tools(client, fields) {
  const final = (given) => client.responses.stream({ ...given, model: fields.model, tools: [WEATHER] }).finalResponse();
  let response = await final(fields);
  const turns = [callsOf(response).map((call) => call.arguments)];
  while (callsOf(response).length > 0) {
    const told = callsOf(response).map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: `rain in ${JSON.parse(call.arguments).city}`,
    }));
    response = await final({ input: told, previous_response_id: response.id });
    turns.push(callsOf(response).map((call) => call.arguments));
  }
  return { text: response.output_text, turns };
}

async function shaped(client, fields) {
  const response = await client.responses.parse({ ...fields, text: { format: COUNT } });
  return { parsed: response.output_parsed.n, text: response.output_text };
}

// A person's decision about a call of the agent's own tool.
async function approved(client, fields) {
  const asked = await client.responses.create(fields);
  const [request] = asked.output;
  const verdict = { type: "mcp_approval_response", approval_request_id: request.id, approve: true };
  const done = await client.responses
    .stream({ model: fields.model, input: [verdict], previous_response_id: asked.id })
    .finalResponse();
  return { asked: request.type, output: done.output.map((item) => item.type), text: done.output_text };
}

// What is there besides responses: a conversation, its items, the items of a request, models, a deletion.
async function kept(client, fields) {
  const conversation = await client.conversations.create({ metadata: { user: "ada" } });
  const response = await client.responses.create({ ...fields, conversation: conversation.id });
  const items = await all(client.conversations.items.list(conversation.id, { order: "asc" }));
  const given = await all(client.responses.inputItems.list(response.id));
  const models = await all(client.models.list());
  await client.responses.delete(response.id);
  return {
    items: items.map((item) => item.role),
    input: given.map((item) => item.role),
    models: models.map((model) => model.id),
  };
}

// How the SDK shows what the server refuses.
async function refused(client, fields) {
  const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: "wrong", maxRetries: 0 });
  const acts = {
    "no response": () => client.responses.retrieve(NO_RESPONSE),
    "no previous response": () => client.responses.create({ ...fields, previous_response_id: NO_RESPONSE }),
    "no such tool": () => client.responses.create({ ...fields, tools: [{ type: "file_search" }] }),
    "no such agent": () => client.responses.create({ model: NO_AGENT, input: "Hi" }),
    "no such name": () => client.responses.create({ model: "nothing", input: "Hi" }),
    "no such model": () => client.models.retrieve("nothing"),
    "no key": () => stranger.responses.create(fields),
  };
  const told = {};
  for (const [name, act] of Object.entries(acts)) told[name] = await refusal(act);
  return told;
}

async function refusal(act) {
  try {
    await act();
  } catch (error) {
    if (!(error instanceof APIError)) throw error;
    return { class: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

const STORIES = { plain, followed, begun, resumed, watched, cancelled, tools, shaped, approved, kept, refused };

for await (const line of createInterface({ input: process.stdin })) {
  const [name, baseURL, apiKey, given] = JSON.parse(line);
  try {
    say({ result: await STORIES[name](new OpenAI({ baseURL, apiKey }), given) });
  } catch (error) {
    say({ error: String(error?.stack ?? error) });
  }
}
// Connections that are kept open would keep it alive.
process.exit(0);

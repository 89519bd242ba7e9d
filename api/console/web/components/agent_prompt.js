// The model's instructions: the whole system prompt as compiled now, its memory blocks, and the share of the window that
// all of it uses.

import { html } from "../html.js";
import { ApiError, request } from "../lib/api.js";
import { number } from "../lib/format.js";
import { usePolled } from "../lib/polling.js";
import { Empty, Failure } from "./basics.js";

const EVERY_MS = 10_000;

/** @type {[string, string][]} */
const SIZES = [
  ["Instructions", "num_tokens_system"],
  ["Memory blocks", "num_tokens_core_memory"],
  ["Metadata", "num_tokens_external_memory_summary"],
  ["Tools", "num_tokens_functions_definitions"],
  ["Messages", "num_tokens_messages"],
];

/** @param {{agent: any}} props */
export function AgentPrompt({ agent }) {
  const { data, error, reload } = usePolled((signal) => promptOf(agent.id, signal), EVERY_MS, [agent.id]);
  const found = data.value;
  return html`
    <${Failure} error=${error.value} retry=${reload} />
    ${found &&
    html`<section aria-labelledby="prompt-title">
        <h2 id="prompt-title">System prompt, as the model gets it</h2>
        <pre class="prompt" tabindex="0" aria-labelledby="prompt-title">${found.prompt}</pre>
      </section>
      <${Sizes} context=${found.context} />`}
    <section aria-labelledby="blocks-title">
      <h2 id="blocks-title">Memory blocks</h2>
      ${agent.blocks.length === 0 &&
      html`<${Empty} title="The agent has no memory blocks">
        <p>
          Give it some with <code>memory_blocks</code> when it is made, or attach one. The model can change what is in
          them.
        </p>
      <//>`}
      ${agent.blocks.map((/** @type {any} */ block) => html`<${Block} key=${block.id} block=${block} />`)}
    </section>
  `;
}

/** @param {{block: any}} props */
function Block({ block }) {
  return html`<article class="panel" aria-labelledby=${`title-${block.id}`}>
    <h3 id=${`title-${block.id}`}>${block.label}</h3>
    <p class="quiet-text">
      ${number(block.value.length)} of ${number(block.limit)} characters${block.read_only ? ", read only" : ""}
      ${block.description && html` · ${block.description}`}
    </p>
    <pre class="json" tabindex="0" aria-labelledby=${`title-${block.id}`}>${block.value || "(empty)"}</pre>
  </article>`;
}

/** @param {{context: any}} props */
function Sizes({ context }) {
  const { context_window_size_current: used, context_window_size_max: most } = context;
  return html`<section aria-labelledby="sizes-title">
    <h2 id="sizes-title">The window: about ${number(used)} of ${number(most)} tokens</h2>
    <dl class="tiles">
      ${SIZES.map(([name, field]) => html`<div><dt>${name}</dt><dd>${number(context[field])}</dd></div>`)}
      <div><dt>Messages in it</dt><dd>${number(context.num_messages)}</dd></div>
      <div><dt>Passages in archival memory</dt><dd>${number(context.num_archival_memory)}</dd></div>
    </dl>
  </section>`;
}

/**
 * The prompt and the sizes of the context.
 * @param {string} agentId
 * @param {AbortSignal} signal
 * @returns {Promise<{prompt: string, context: any}>}
 */
async function promptOf(agentId, signal) {
  const context = await request("GET", `/v1/agents/${agentId}/context`, { signal });
  try {
    const prompt = await request("POST", `/v1/agents/${agentId}/recompile`, { query: { dry_run: true }, signal });
    return { prompt, context };
  } catch (thrown) {
    // A key that may only read gets the prompt in its parts.
    if (!(thrown instanceof ApiError) || thrown.status !== 403) throw thrown;
    const parts = [context.system_prompt, context.core_memory, context.external_memory_summary];
    return { prompt: parts.filter(Boolean).join("\n\n"), context };
  }
}

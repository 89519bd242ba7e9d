// The tools of an agent, each with its purpose, its parameters, the way in which it runs, and its source as written.

import { html } from "../html.js";
import { Empty } from "./basics.js";
import { JsonView } from "./json_view.js";

/** @param {{agent: any}} props */
export function AgentTools({ agent }) {
  if (agent.tools.length === 0) {
    return html`<${Empty} title="The agent has no tools">
      <p>Make one with <code>PUT /v1/tools</code> and give it to the agent with <code>tool_ids</code>.</p>
    <//>`;
  }
  return html`<section aria-label="Tools">
    ${agent.tools.map(
      (/** @type {any} */ tool) => html`<${ToolCard} key=${tool.id} tool=${tool} rules=${rulesOf(agent, tool)} />`,
    )}
  </section>`;
}

/** @param {{tool: any, rules: any[]}} props */
function ToolCard({ tool, rules }) {
  const asks = tool.default_requires_approval || rules.some((rule) => rule.type === "requires_approval");
  const facts = [
    tool.tool_type,
    tool.source_type,
    asks && "waits for a person",
    tool.idempotent && "may be started again",
    tool.network === "host" && "reaches the network",
    ...tool.tags,
  ].filter(Boolean);
  return html`<article class="panel" aria-labelledby=${`title-${tool.id}`}>
    <h2 id=${`title-${tool.id}`}><code>${tool.name}</code></h2>
    <p>${tool.description}</p>
    <p class="quiet-text">${facts.join(" · ")}</p>
    <${JsonView} value=${tool.json_schema?.parameters ?? {}} label="Parameters" open=${false} />
    ${rules.length > 0 && html`<${JsonView} value=${rules} label="Rules" open=${false} />`}
    ${tool.limits && html`<${JsonView} value=${tool.limits} label="Limits" />`}
    ${tool.packages && html`<${JsonView} value=${tool.packages} label="Packages" open=${false} />`}
    ${tool.source_code
      ? html`<details class="folded">
          <summary>Source</summary>
          <pre class="json source" tabindex="0" aria-label=${`Source of ${tool.name}`}>${tool.source_code}</pre>
        </details>`
      : html`<p class="quiet-text">It comes with the server and has no source of its own.</p>`}
  </article>`;
}

/** @param {any} agent @param {any} tool @returns {any[]} */
function rulesOf(agent, tool) {
  return agent.tool_rules.filter((/** @type {any} */ rule) => rule.tool_name === tool.name);
}

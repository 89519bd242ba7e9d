// An agent's settings: its model and the model's options, its policies for approvals and a full window, and the names of
// its secrets. The secrets' values are never shown.

import { html } from "../html.js";
import { number } from "../lib/format.js";
import { Time } from "./basics.js";
import { JsonView } from "./json_view.js";

/** @param {{agent: any}} props */
export function AgentSettings({ agent }) {
  const secrets = agent.secrets.map((/** @type {any} */ secret) => secret.key).join(", ");
  const seconds = agent.approval_expires_s;
  const expires = seconds ? `after ${number(seconds)} s: ${agent.on_approval_expiry}` : "never";
  /** @type {[string, any][]} */
  const facts = [
    ["Model", agent.model],
    ["Embedding", agent.embedding ?? "none: archival memory is searched by words"],
    ["Context window", number(agent.llm_config?.context_window)],
    ["Kind", agent.agent_type],
    ["Time zone", agent.timezone],
    ["Tags", agent.tags.join(", ") || "none"],
    ["Approvals expire", expires],
    ["Secrets", secrets || "none; names are shown to keys that may see them"],
    ["Made", html`<${Time} at=${agent.created_at} />`],
    ["Changed", html`<${Time} at=${agent.updated_at} />`],
  ];
  /** @type {[string, unknown][]} */
  const documents = [
    ["Model settings", agent.model_settings],
    ["When the window is full", agent.compaction_settings],
    ["Tool rules", agent.tool_rules],
    ["Metadata", agent.metadata],
  ];
  return html`<section aria-label="Settings">
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${documents.map(
      ([name, value]) => html`<p class="part-name">${name}</p><${JsonView} value=${value} label=${name} open=${true} />`,
    )}
  </section>`;
}

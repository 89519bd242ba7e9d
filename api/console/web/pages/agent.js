// One agent: a talk with it, and all its settings.

import { html } from "../html.js";
import { AgentConversations } from "../components/agent_conversations.js";
import { AgentPrompt } from "../components/agent_prompt.js";
import { AgentSettings } from "../components/agent_settings.js";
import { AgentSleep } from "../components/agent_sleep.js";
import { AgentTools } from "../components/agent_tools.js";
import { Failure, Id } from "../components/basics.js";
import { Talk } from "../components/talk.js";
import { request } from "../lib/api.js";
import { usePolled } from "../lib/polling.js";
import { href } from "../lib/routing.js";

const EVERY_MS = 10_000;

const PARTS = [
  ["talk", "Talk"],
  ["conversations", "Conversations"],
  ["prompt", "Prompt and memory"],
  ["tools", "Tools"],
  ["settings", "Settings"],
];

/** @param {import("../app.js").PageProps} props */
export function AgentPage({ params, query }) {
  const { data, error, reload } = usePolled(
    (signal) => request("GET", `/v1/agents/${encodeURIComponent(params.id)}`, { signal }),
    EVERY_MS,
    [params.id],
  );
  const agent = data.value;
  if (agent === undefined) {
    return html`<h1>Agent</h1>
      <${Failure} error=${error.value} retry=${reload} />
      ${error.value
        ? html`<p><a href=${href("/agents")}>Show all agents</a></p>`
        : html`<p role="status">The agent is being fetched.</p>`}`;
  }
  return html`
    <h1 class="agent-name" title=${agent.name}>${agent.name}</h1>
    <p class="facts-line">
      <${Id} id=${agent.id} /> <code>${agent.model}</code>
      <a href=${href("/runs", { agent: agent.id })}>Its runs</a>
      <a href=${href("/approvals", { agent: agent.id })}>Its approvals</a>
    </p>
    ${agent.description && html`<p class="description" title=${agent.description}>${agent.description}</p>`}
    <${AgentSleep} key=${agent.id} agent=${agent} />
    <${Failure} error=${error.value} retry=${reload} />
    <nav class="tabs" aria-label="Parts of the agent">
      ${PARTS.map(([show, title]) => {
        const isHere = show === (query.show ?? "talk") ? "page" : undefined;
        return html`<a href=${href(`/agents/${agent.id}`, { show })} aria-current=${isHere}>${title}</a>`;
      })}
    </nav>
    <${Part} agent=${agent} query=${query} />
  `;
}

/** @param {{agent: any, query: Record<string, string>}} props */
function Part({ agent, query }) {
  switch (query.show) {
    case "conversations":
      return html`<${AgentConversations} agentId=${agent.id} />`;
    case "prompt":
      return html`<${AgentPrompt} agent=${agent} />`;
    case "tools":
      return html`<${AgentTools} agent=${agent} />`;
    case "settings":
      return html`<${AgentSettings} agent=${agent} />`;
    default:
      return html`<${TalkPlace} agentId=${agent.id} conversationId=${query.conversation ?? null} />`;
  }
}

/** @param {{agentId: string, conversationId: string | null}} props */
function TalkPlace({ agentId, conversationId }) {
  return html`
    <p class="quiet-text talk-place">
      ${conversationId ? html`In the conversation <${Id} id=${conversationId} />` : "In the agent's own history"}
    </p>
    <${Talk} key=${conversationId ?? agentId} agentId=${agentId} conversationId=${conversationId} />
  `;
}

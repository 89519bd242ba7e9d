// The inbox: every tool call of the project that waits for a person, from all agents, and the decided calls.

import { html } from "../html.js";
import { AgentFilter } from "../components/agent_filter.js";
import { DecidedApprovals } from "../components/decided_approvals.js";
import { WaitingApprovals } from "../components/waiting_approvals.js";
import { actor } from "../lib/actor.js";
import { href } from "../lib/routing.js";

/** @param {import("../app.js").PageProps} props */
export function ApprovalsPage({ query }) {
  const agentId = query.agent ?? "";
  const showsDecided = query.show === "decided";
  return html`
    <h1>Approvals</h1>
    <nav class="tabs" aria-label="Which approvals">
      <a href=${href("/approvals", { agent: agentId })} aria-current=${showsDecided ? undefined : "page"}>Waiting</a>
      <a
        href=${href("/approvals", { agent: agentId, show: "decided" })}
        aria-current=${showsDecided ? "page" : undefined}
      >Decided</a>
    </nav>
    <div class="filters">
      <${AgentFilter} agentId=${agentId} />
      <label>
        Your name, for the record
        <input
          value=${actor.value} maxlength="200" placeholder="console" autocomplete="name"
          onInput=${(/** @type {any} */ event) => (actor.value = event.currentTarget.value)}
        />
      </label>
    </div>
    ${showsDecided
      ? html`<${DecidedApprovals} agentId=${agentId} />`
      : html`<${WaitingApprovals} agentId=${agentId} />`}
  `;
}

// The project's agents, newest first, with the last run of each.

import { html } from "../html.js";
import { Copy, Empty, Failure, Id, Time } from "../components/basics.js";
import { CodeAgents } from "../components/code_agents.js";
import { Pager } from "../components/pager.js";
import { usePaged } from "../lib/paged.js";
import { href, refine } from "../lib/routing.js";

/**
 * @typedef {{id: string, name: string, model: string, description: string | null, tags: string[], tools: any[],
 *   created_at: string, last_run_completion: string | null, last_stop_reason: string | null}} AgentRow
 */

const PAGE = 25;
const EVERY_MS = 5000;

/** @param {AgentRow} agent */
const idOf = (agent) => agent.id;

/** @param {import("../app.js").PageProps} props */
export function AgentsPage({ query }) {
  const wanted = query.q ?? "";
  const list = usePaged("/v1/agents", { query_text: wanted }, { size: PAGE, when: EVERY_MS, idOf });
  return html`
    <h1>Agents</h1>
    <div class="filters">
      <label>
        Name contains
        <input
          type="search" value=${wanted} spellcheck=${false}
          onInput=${(/** @type {any} */ event) => refine({ q: event.currentTarget.value })}
        />
      </label>
    </div>
    <${Failure} error=${list.error} retry=${list.reload} />
    ${list.rows === undefined && !list.error && html`<p role="status">The agents are being fetched.</p>`}
    ${list.rows?.length === 0 && (wanted ? html`<${NoneFound} wanted=${wanted} />` : html`<${NoAgents} />`)}
    ${list.rows !== undefined && list.rows.length > 0 && html`<${AgentTable} rows=${list.rows} />`}
    <${Pager} ...${list} of="agents" />
    <${CodeAgents} />
  `;
}

/** @param {{rows: AgentRow[]}} props */
function AgentTable({ rows }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Agents">
    <table>
      <thead>
        <tr>
          <th scope="col">Name</th><th scope="col">Model</th><th scope="col" class="figure">Tools</th>
          <th scope="col">Tags</th><th scope="col">Last run</th><th scope="col">Made</th><th scope="col">Id</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (agent) => html`<tr key=${agent.id}>
            <th scope="row"><a class="short-name" title=${agent.name} href=${href(`/agents/${agent.id}`)}>${agent.name}</a></th>
            <td>${agent.model}</td>
            <td class="figure">${agent.tools.length}</td>
            <td><span class="short-name" title=${agent.tags.join(", ")}>${agent.tags.join(", ")}</span></td>
            <td><${LastRun} agent=${agent} /></td>
            <td><${Time} at=${agent.created_at} /></td>
            <td><${Id} id=${agent.id} /></td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** @param {{agent: AgentRow}} props */
function LastRun({ agent }) {
  if (!agent.last_run_completion) return "none yet";
  return html`<${Time} at=${agent.last_run_completion} /> ${(agent.last_stop_reason ?? "").replaceAll("_", " ")}`;
}

/** @param {{wanted: string}} props */
function NoneFound({ wanted }) {
  return html`<${Empty} title="No agent has such a name">
    <p>Nothing contains “${wanted}”. <a href=${href("/agents")}>Show all agents</a></p>
  <//>`;
}

function NoAgents() {
  const body = `'{"name": "first", "model": "builtin/echo"}'`;
  const command = `curl ${location.origin}/v1/agents -H 'Content-Type: application/json' -d ${body}`;
  return html`<${Empty} title="There are no agents yet">
    <p>Make one with any Letta client, or with this line (with a key: <code>-H "Authorization: Bearer …"</code>):</p>
    <p><code>${command}</code> <${Copy} text=${command} what="the line" /></p>
    <p>
      It appears here within five seconds. <code>builtin/echo</code> repeats each message, and needs no model's key.
    </p>
  <//>`;
}

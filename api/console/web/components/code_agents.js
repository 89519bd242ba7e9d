// Agents of operators' own code: their versions and workers, and the journal of a run.

import { html } from "../html.js";
import { request } from "../lib/api.js";
import { number } from "../lib/format.js";
import { usePolled } from "../lib/polling.js";
import { Failure, Time } from "./basics.js";

/**
 * @typedef {{version: string | null, workers: number, last_seen_at: string}} Version
 * @typedef {{name: string, description: string, framework: string, workers: number, versions: Version[]}} CodeAgent
 * @typedef {{slot: string, branch: string, kind: string, name: string, state: string, attempt: number, started_at: string,
 *   ended_at: string | null, error: {type: string, text: string} | null}} JournalEntry
 */

const EVERY_MS = 5000;
/** A run's stream shows the output of its code, but not the calls, which only the journal has. */
const WHILE_ACTIVE_MS = 2000;

/** The states of an entry in words. @type {Record<string, string>} */
const STATES = { started: "in hand", done: "done", failed: "failed", unknown: "outcome unknown" };

/** The agents of own code with their workers and versions; nothing without such agents. */
export function CodeAgents() {
  const { data } = usePolled(
    (signal) => /** @type {Promise<CodeAgent[]>} */ (request("GET", "/v1/code-agents", { signal })),
    EVERY_MS,
    [],
  );
  const agents = data.value ?? [];
  if (agents.length === 0) return null;
  return html`<section aria-labelledby="code-agents-title">
    <h2 id="code-agents-title">Code agents</h2>
    <div class="scroll" tabindex="0" role="group" aria-labelledby="code-agents-title">
      <table>
        <thead>
          <tr>
            <th scope="col">Model</th><th scope="col">Description</th><th scope="col">Framework</th>
            <th scope="col">Version</th><th scope="col" class="figure">Workers</th><th scope="col">Seen</th>
          </tr>
        </thead>
        <tbody>
          ${agents.flatMap((agent) =>
            agent.versions.map(
              (version) => html`<tr key=${`${agent.name} ${version.version}`}>
                <th scope="row">code/${agent.name}</th>
                <td>${agent.description}</td>
                <td>${agent.framework}</td>
                <td>${version.version ?? "none declared"}</td>
                <td class="figure">${number(version.workers)}</td>
                <td><${Time} at=${version.last_seen_at} /></td>
              </tr>`,
            ),
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

/**
 * The actions of the code in the run's turn; nothing for runs of other agents.
 * @param {{run: any, isActive: boolean, turns: number}} props `turns` as in `Shown`
 */
export function Journal({ run, isActive, turns }) {
  return run.code_agent ? html`<${Entries} runId=${run.id} isActive=${isActive} turns=${turns} />` : null;
}

/** @param {{runId: string, isActive: boolean, turns: number}} props */
function Entries({ runId, isActive, turns }) {
  const { data, error, reload } = usePolled(
    (signal) => /** @type {Promise<JournalEntry[]>} */ (request("GET", `/v1/runs/${runId}/journal`, { signal })),
    isActive ? WHILE_ACTIVE_MS : 0,
    [runId, isActive],
    turns,
  );
  const entries = data.value ?? [];
  return html`<section aria-labelledby="journal-title">
    <h2 id="journal-title">Journal</h2>
    <${Failure} error=${error.value} retry=${reload} />
    ${entries.length === 0 && html`<p class="quiet-text">The code has done nothing yet that is recorded.</p>`}
    ${entries.length > 0 &&
    html`<div class="scroll" tabindex="0" role="group" aria-labelledby="journal-title">
      <table>
        <thead>
          <tr>
            <th scope="col">Call</th><th scope="col">Kind</th><th scope="col">State</th>
            <th scope="col" class="figure">Attempts</th><th scope="col">Began</th><th scope="col">Ended</th>
          </tr>
        </thead>
        <tbody>
          ${entries.map(
            (entry) => html`<tr key=${entry.slot}>
              <th scope="row" title=${entry.slot}>${entry.name}</th>
              <td>${entry.kind}</td>
              <td>${STATES[entry.state] ?? entry.state}${entry.error && `: ${entry.error.type}: ${entry.error.text}`}</td>
              <td class="figure">${number(entry.attempt)}</td>
              <td><${Time} at=${entry.started_at} /></td>
              <td>${entry.ended_at && html`<${Time} at=${entry.ended_at} />`}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
  </section>`;
}

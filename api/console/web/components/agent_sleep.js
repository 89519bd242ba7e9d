// The agents that think about this agent's turns in the background, or the agent about whose turns this one thinks.

import { html } from "../html.js";
import { request } from "../lib/api.js";
import { usePolled } from "../lib/polling.js";
import { AgentName, Id, Time } from "./basics.js";

const EVERY_MS = 10_000;

/**
 * @typedef {{id: string, manager_agent_id: string, agent_ids: string[], sleeptime_agent_frequency: number | null}} Group
 * @typedef {{id: string, status: string, created_at: string}} Run
 */

/** @param {{agent: any}} props */
export function AgentSleep({ agent }) {
  const { data } = usePolled(
    (signal) => request("GET", `/v1/agents/${agent.id}/groups`, { signal }),
    EVERY_MS,
    [agent.id],
  );
  /** @type {Group[]} */
  const groups = data.value ?? [];
  if (groups.length === 0) return null;
  return html`<section class="agent-sleep" aria-label="Sleep time">
    ${groups.map((group) =>
      group.manager_agent_id === agent.id
        ? group.agent_ids.map(
            (id) => html`<${Sleeper} key=${id} id=${id} group=${group} isOn=${agent.enable_sleeptime === true} />`,
          )
        : html`<p key=${group.id} class="facts-line">
            Works in the background for <${AgentName} id=${group.manager_agent_id} />
          </p>`,
    )}
  </section>`;
}

/** @param {{id: string, group: Group, isOn: boolean}} props */
function Sleeper({ id, group, isOn }) {
  const { data } = usePolled(
    (signal) => request("GET", "/v1/runs/", { query: { agent_id: id, limit: 1 }, signal }),
    EVERY_MS,
    [id],
  );
  /** @type {Run | undefined} */
  const last = data.value?.[0];
  return html`<p class="facts-line">
    Sleep-time agent: <${AgentName} id=${id} />
    <span>${isOn ? often(group.sleeptime_agent_frequency) : "turned off"}</span>
    ${last === undefined
      ? html`<span>has not thought yet</span>`
      : html`<span>last thought <${Time} at=${last.created_at} /></span>
          <${Id} id=${last.id} href=${`#/runs/${last.id}`} />`}
  </p>`;
}

/**
 * The frequency of its thinking, as text.
 * @param {number | null} frequency
 */
function often(frequency) {
  if (frequency === 0) return "never thinks";
  return frequency === null || frequency === 1 ? "thinks after every turn" : `thinks after every ${frequency} turns`;
}

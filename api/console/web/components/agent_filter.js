// A field that filters a page by one agent, given its name or its id.

import { html, useRef, useState } from "../html.js";
import { agentName } from "../lib/agent_names.js";
import { agentIdOf } from "../lib/find_by_id.js";
import { refine } from "../lib/routing.js";
import { Failure } from "./basics.js";

/** @param {{agentId: string}} props `agentId`: the agent that the page's address names; "" for all agents */
export function AgentFilter({ agentId }) {
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  // The typed text stays until it has found an agent, so that a person can correct it.
  const [typed, setTyped] = useState(/** @type {string | null} */ (null));
  const newest = useRef("");
  const find = async (/** @type {string} */ text) => {
    newest.current = text;
    setError(null);
    try {
      const found = await agentIdOf(text);
      if (newest.current !== text) return;
      setTyped(null);
      refine({ agent: found });
    } catch (thrown) {
      if (newest.current === text) setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    }
  };
  const shown = agentId === "" ? "" : agentName(agentId) || agentId;
  return html`
    <label>Agent
      <input
        value=${typed ?? shown} title=${agentId} placeholder="name or agent-…" spellcheck=${false}
        onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)}
        onChange=${(/** @type {any} */ event) => find(event.currentTarget.value)}
      />
    </label>
    <${Failure} error=${error} />
  `;
}

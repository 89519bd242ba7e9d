// The names of agents, each requested once while the page is open. A name is for people; programs use the id.

import { signal } from "../html.js";
import { ApiError, request } from "./api.js";

const names = signal(/** @type {Readonly<Record<string, string>>} */ ({}));
/** @type {Set<string>} */
const asked = new Set();

/**
 * The agent's name; "" until it is known, and for an agent that was deleted.
 * @param {string} agentId
 */
export function agentName(agentId) {
  if (!asked.has(agentId)) {
    asked.add(agentId);
    request("GET", `/v1/agents/${agentId}`).then(
      (agent) => (names.value = { ...names.value, [agentId]: agent.name }),
      (thrown) => {
        // A deleted agent, or one that this key may not see, is not requested again: a page draws its cards often.
        const isFinal = thrown instanceof ApiError && (thrown.status === 403 || thrown.status === 404);
        if (!isFinal) asked.delete(agentId);
      },
    );
  }
  return names.value[agentId] ?? "";
}

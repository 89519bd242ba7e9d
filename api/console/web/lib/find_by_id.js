// Finds the page for an id of any kind.

import { ApiError, request } from "./api.js";

/**
 * The address of the object with this id. Throws `ApiError` for an unknown id.
 * @param {string} text
 * @returns {Promise<string>}
 */
export async function addressOf(text) {
  const id = text.trim();
  const prefix = id.split("-")[0];
  const find = FINDERS[prefix];
  if (find === undefined) {
    throw new ApiError(0, `${id} is no id: give that of a run, step, message, approval, agent or conversation (run-…)`);
  }
  return find(id);
}

/**
 * The id of the agent with this id or name; "" for an empty text. Throws `ApiError` for a name of no agent, or of
 * several agents.
 * @param {string} text
 * @returns {Promise<string>}
 */
export async function agentIdOf(text) {
  const wanted = text.trim();
  if (wanted === "" || wanted.startsWith("agent-")) return wanted;
  const found = await request("GET", "/v1/agents", { query: { name: wanted, limit: 2 } });
  if (found.length > 1) throw new ApiError(0, `Several agents are named ${wanted}: give the id of one (agent-…)`);
  if (found.length === 0) throw new ApiError(0, `No agent is named ${wanted}: give a whole name, or an id (agent-…)`);
  return found[0].id;
}

/** @type {Record<string, (id: string) => Promise<string>>} */
const FINDERS = {
  run: async (id) => toRun((await get("runs", id)).id, id),
  step: async (id) => toRun((await get("steps", id)).run_id, id),
  message: async (id) => {
    const found = await get("messages", id);
    const parts = Array.isArray(found) ? found : [found];
    return toRun(parts[0]?.run_id, id);
  },
  approval: async (id) => toRun((await get("approvals", id)).run_id, id),
  agent: async (id) => `#/agents/${(await get("agents", id)).id}`,
  conv: async (id) => `#/runs?conversation=${(await get("conversations", id)).id}`,
};

/**
 * @param {string} noun
 * @param {string} id
 */
function get(noun, id) {
  return request("GET", `/v1/${noun}/${encodeURIComponent(id)}`);
}

/**
 * @param {string | null | undefined} runId
 * @param {string} id
 */
function toRun(runId, id) {
  if (!runId) throw new ApiError(0, `${id} belongs to no run`);
  return `#/runs/${runId}`;
}

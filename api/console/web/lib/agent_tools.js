// The tools of agents in the API's form. Those of an agent are fetched once and kept for a minute.

import { request } from "./api.js";

/** @typedef {{name: string, json_schema?: {parameters?: Record<string, any>} | null}} AgentTool */

const KEPT_MS = 60_000;

/** @type {Map<string, {at: number, tools: Promise<AgentTool[]>}>} */
const kept = new Map();

/**
 * The tools of an agent. Raises `ApiError` when the API does.
 * @param {string} agentId
 * @returns {Promise<AgentTool[]>}
 */
export function toolsOf(agentId) {
  const known = kept.get(agentId);
  if (known && Date.now() - known.at < KEPT_MS) return known.tools;
  const tools = request("GET", `/v1/agents/${agentId}/tools`, { query: { limit: 1000 } });
  kept.set(agentId, { at: Date.now(), tools });
  // A failed request is repeated the next time.
  tools.catch(() => kept.delete(agentId));
  return tools;
}

/**
 * The parameters of one of the agent's tools as a JSON Schema; null for a tool that the agent lacks, such as a client's
 * own tool.
 * @param {string} agentId
 * @param {string} toolName
 * @returns {Promise<Record<string, any> | null>}
 */
export async function parametersOf(agentId, toolName) {
  const tools = await toolsOf(agentId);
  return tools.find((tool) => tool.name === toolName)?.json_schema?.parameters ?? null;
}

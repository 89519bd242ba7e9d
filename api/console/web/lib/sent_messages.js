// Messages on their way to an agent. They are kept in the tab's session storage under their otid until the history has
// them, so a page that is loaded again in between sends them again, and the server makes one run of both.

import { request, streamMessages } from "./api.js";

/** @typedef {import("./talk_entries.js").Sent} Sent */

const KEPT_AS = "holdfast.sent.";

/**
 * What is under way on a history of an agent.
 * @param {string} threadId
 * @returns {Sent[]}
 */
export function keptMessages(threadId) {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT_AS + threadId) ?? "[]");
  } catch {
    return [];
  }
}

/** @param {string} threadId @param {Sent[]} sent */
export function keepMessages(threadId, sent) {
  if (sent.length === 0) sessionStorage.removeItem(KEPT_AS + threadId);
  else sessionStorage.setItem(KEPT_AS + threadId, JSON.stringify(sent));
}

/**
 * Sends a message to be answered in the background, with its tokens as they come; gives the id of the run that answers.
 * The same `otid` twice is one run. Throws `ApiError`.
 * @param {string} agentId
 * @param {string | null} conversationId null: the agent's own history
 * @param {Sent} message
 * @returns {Promise<string>}
 */
export async function sendMessage(agentId, conversationId, { otid, text, ifBusy }) {
  const path = conversationId ? `/v1/conversations/${conversationId}/messages` : `/v1/agents/${agentId}/messages`;
  const body = {
    messages: [{ role: "user", content: text, otid }],
    stream_tokens: true,
    include_status_events: true,
    if_busy: ifBusy,
  };
  // The stream of the submission says which run it is; from there on the run's own stream is followed.
  const enough = new AbortController();
  let runId = "";
  try {
    await streamMessages(path, body, {
      signal: enough.signal,
      onFrame: ({ data }) => {
        runId = data?.run_id ?? runId;
        if (runId !== "") enough.abort();
      },
    });
  } catch (thrown) {
    if (runId === "") throw thrown;
  }
  return runId;
}

/**
 * Asks a run to stop. Gives the receipt.
 * @param {string} runId
 * @returns {Promise<{status: string, stopped_at: string | null}>}
 */
export function stopRun(runId) {
  return request("POST", `/v1/runs/${runId}/cancel`, { body: { mode: "interrupt", reason: "stopped in the console" } });
}

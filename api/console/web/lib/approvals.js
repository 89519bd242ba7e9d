// Decisions on tool calls over the API, one by one or many at once, and their outcomes.

import { ApiError, request } from "./api.js";
import { actorName } from "./actor.js";

/**
 * @typedef {{
 *   id: string, status: "waiting" | "approved" | "denied" | "returned", run_id: string, agent_id: string,
 *   conversation_id: string | null, message_id: string, tool_call_id: string, tool_name: string,
 *   arguments: string, arguments_object: Record<string, any> | null, arguments_hash: string,
 *   tool_version: string | null, client_side: boolean,
 *   asked_at: string, expires_at: string | null, on_expiry: "keep" | "deny" | "cancel",
 *   decision: Record<string, any> | null, decided_at: string | null, decided_by: string | null,
 *   continued_by: string | null, run?: Record<string, any> | null,
 * }} Approval
 *
 * @typedef {{decision: "approve", arguments?: Record<string, any>}
 *   | {decision: "deny", reason?: string}
 *   | {decision: "tool_return", tool_return: string, status: "success" | "error"}} Decision
 *
 * @typedef {{approval: Approval, conflict: string | null}} Decided
 */

// Concurrent decisions: a browser opens six connections to one server, and streams need some.
const AT_ONCE = 4;

/**
 * Decides one call, only for the arguments and the tool that were shown. If another person was faster, or these have
 * changed, the result is the present call, with the reason in `conflict`. Throws `ApiError` for every other refusal.
 * @param {Approval} approval
 * @param {Decision} decision
 * @returns {Promise<Decided>}
 */
export async function decide(approval, decision) {
  const { arguments_hash, tool_version } = approval;
  const body = { ...decision, arguments_hash, tool_version, decided_by: actorName() };
  try {
    return { approval: await request("POST", `/v1/approvals/${approval.id}`, { body }), conflict: null };
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 409) throw error;
    return { approval: await request("GET", `/v1/approvals/${approval.id}`), conflict: error.message };
  }
}

/**
 * Makes one decision on many calls. A refusal for one call does not affect the other calls.
 * @param {Approval[]} approvals
 * @param {Decision} decision
 * @param {(approval: Approval, decided: Decided | null, error: Error | null) => void} onEach
 */
export async function decideAll(approvals, decision, onEach) {
  const waiting = [...approvals];
  const one = async () => {
    for (let approval = waiting.shift(); approval !== undefined; approval = waiting.shift()) {
      try {
        onEach(approval, await decide(approval, decision), null);
      } catch (error) {
        onEach(approval, null, error instanceof Error ? error : new Error(String(error)));
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, one));
}

/** The arguments as text that a person can read and edit. @param {Approval} approval */
export function readableArguments(approval) {
  if (approval.arguments_object === null) return approval.arguments;
  return JSON.stringify(approval.arguments_object, null, 2);
}

/** The outcome of a decision, in a sentence. @param {Approval} approval */
export function outcomeOf(approval) {
  const by = approval.decided_by ? ` by ${approval.decided_by}` : "";
  if (approval.status === "returned") return `Answered with a result${by}`;
  if (approval.status === "denied") return `Denied${by}`;
  if (approval.status === "waiting") return "Waiting";
  return `Approved${approval.decision?.arguments ? " with other arguments" : ""}${by}`;
}

const EXPIRY = {
  keep: "then it goes on waiting",
  deny: "then the call is denied",
  cancel: "then the run is cancelled",
};

/** The effect of the expiry, in words. @param {Approval} approval */
export function onExpiry(approval) {
  return EXPIRY[approval.on_expiry] ?? approval.on_expiry;
}

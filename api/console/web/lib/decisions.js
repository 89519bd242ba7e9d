// The decisions on the calls for which a run has waited, in the form of its conversation's stream.

import { useMemo } from "../html.js";
import { request } from "./api.js";
import { usePolled } from "./polling.js";
import { isOver } from "./run_chain.js";

/** @typedef {import("./approvals.js").Approval} Approval */
/** @typedef {import("./frames.js").Transcript} Transcript */

const MOST = 1000;

/** By the number of the run in its chain, and the call. @param {number} leg @param {string | undefined} callId */
const placeOf = (leg, callId) => `${leg} ${callId}`;

/**
 * The transcript of a run and of its continuations, with the decisions on its calls as they are made.
 * @param {Transcript} transcript
 * @param {any[]} runs
 * @returns {Transcript}
 */
export function useDecided(transcript, runs) {
  const last = runs[runs.length - 1];
  const asking = runs.flatMap((run, leg) => (mayHaveAsked(run) ? [{ run, leg }] : []));
  const ids = new Set(asking.map(({ run }) => run.id));
  const { data } = usePolled(
    async (signal) => {
      const found = await Promise.all(asking.map(({ run }) => decidedOf(run, signal)));
      const pairs = found.flatMap((some, number) => {
        const { run, leg } = asking[number];
        return some.map((one) => /** @type {const} */ ([placeOf(leg, one.tool_call_id), decisionOf(one, run)]));
      });
      return new Map(pairs);
    },
    asking.length > 0 && !isOver(last) ? { agentId: last.agent_id, concerns: (change) => ids.has(change.run_id) } : 0,
    [[...ids].join()],
    last.status,
  );
  const decisions = data.value;
  return useMemo(() => withDecisions(transcript, decisions ?? new Map()), [transcript, decisions]);
}

/** @param {any} run */
function mayHaveAsked(run) {
  return run.stop_reason === "requires_approval" || run.status === "cancelled";
}

/**
 * The decided calls for which a run has waited.
 * @param {{id: string, agent_id: string}} run
 * @param {AbortSignal} signal
 * @returns {Promise<Approval[]>}
 */
async function decidedOf(run, signal) {
  const query = { run_id: run.id, agent_id: run.agent_id, decided: true, limit: MOST };
  return request("GET", "/v1/approvals", { query, signal });
}

/**
 * A decision in the form of the conversation's stream.
 * @param {Approval} approval
 * @param {any} run the run of the call
 * @returns {Record<string, any>}
 */
function decisionOf({ decision, decided_by: by, decided_at: at }, run) {
  const edited = decision?.arguments ?? null;
  return {
    decision: unlessDecided(by, at, run) ?? decision?.decision,
    reason: decision?.reason ?? null,
    decided_by: by,
    edited: edited !== null,
    edited_arguments: edited,
  };
}

/** The end of the wait, if no person decided. @param {string | null} by @param {string | null} at @param {any} run */
function unlessDecided(by, at, run) {
  if (by === "expiry") return "expired";
  if (run.status !== "cancelled" || at !== run.completed_at) return undefined;
  return run.metadata?.cause === "approval_expired" ? "expired" : "cancelled";
}

/**
 * A call for which a run waits, or the decision on it; null if the run has not waited for it.
 * @param {string} callId
 * @param {string} runId
 * @param {string} agentId
 * @param {AbortSignal} signal
 * @returns {Promise<{open: Approval} | {decision: Record<string, any>} | null>}
 */
export async function openOrDecided(callId, runId, agentId, signal) {
  const isIt = (/** @type {Approval} */ one) => one.tool_call_id === callId;
  const query = { run_id: runId, agent_id: agentId, limit: MOST };
  const open = (await request("GET", "/v1/approvals", { query, signal })).find(isIt);
  if (open !== undefined) return { open };
  const run = await request("GET", `/v1/runs/${encodeURIComponent(runId)}`, { signal });
  const approval = (await decidedOf(run, signal)).find(isIt);
  return approval === undefined ? null : { decision: decisionOf(approval, run) };
}

/**
 * @param {Transcript} transcript
 * @param {ReadonlyMap<string, Record<string, any>>} decisions
 * @returns {Transcript}
 */
function withDecisions(transcript, decisions) {
  if (decisions.size === 0) return transcript;
  const items = transcript.items.map((item) => {
    if (item.call === undefined || item.isVoid || !item.call.needsApproval) return item;
    const decision = decisions.get(placeOf(item.leg, item.call.id));
    return decision === undefined ? item : decided(item, item.call, decision);
  });
  return { ...transcript, items };
}

/** Cached: a new object would be drawn again. @type {WeakMap<object, WeakMap<object, import("./frames.js").Item>>} */
const known = new WeakMap();

/**
 * @param {import("./frames.js").Item} item
 * @param {import("./frames.js").Call} call
 * @param {Record<string, any>} decision
 */
function decided(item, call, decision) {
  const made = known.get(item) ?? new WeakMap();
  known.set(item, made);
  if (!made.has(decision)) made.set(decision, { ...item, call: { ...call, decision } });
  return made.get(decision) ?? item;
}

// A run and its continuations after approvals, as they change.

import { useRef, useSignal } from "../html.js";
import { statusOf } from "../components/status.js";
import { ApiError, request } from "./api.js";
import { usePolled } from "./polling.js";

/**
 * @param {string} id the id of the first run
 * @returns {{runs: any[], error: Error | null, reload: () => void, askSoon: () => void}} the run first; empty until the first
 *   answer. `askSoon` is for news in the runs' streams: run changes do not include steps and figures
 */
export function useRunChain(id) {
  const known = useRef(/** @type {any[]} */ ([]));
  const following = useSignal(/** @type {any} */ (null));
  const first = following.value?.first === id ? following.value.run : null;
  const isSame = (/** @type {import("./run_changes.js").RunChange} */ { event_data: run }) =>
    run.conversation_id === first.conversation_id;
  const polled = usePolled(
    async (signal) => {
      const before = known.current[0]?.id === id ? known.current : [];
      const last = before.at(-1);
      if (last !== undefined && isOver(last)) return before;
      const runs = [...before.slice(0, -1), ...(await runsFrom(last?.id ?? id, signal))];
      known.current = runs;
      following.value = isOver(runs[runs.length - 1]) ? null : { first: id, run: runs[0] };
      return runs;
    },
    first === null ? 0 : { agentId: first.agent_id, concerns: isSame },
    [id],
  );
  const runs = polled.data.value ?? [];
  return { runs: runs[0]?.id === id ? runs : [], error: polled.error.value, reload: polled.reload, askSoon: polled.askSoon };
}

/** @param {any} run */
export function isActive(run) {
  return run.status === "created" || run.status === "running";
}

/** @param {any} run */
export function isOver(run) {
  return !isActive(run) && statusOf(run) !== "requires_approval";
}

/**
 * The present run, and its continuations.
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<any[]>}
 */
async function runsFrom(id, signal) {
  const runs = [];
  for (let next = id; next; next = runs[runs.length - 1].metadata?.continued_by_run_id) {
    try {
      runs.push(await request("GET", `/v1/runs/${encodeURIComponent(next)}`, { signal }));
    } catch (thrown) {
      const isDeleted = runs.length > 0 && thrown instanceof ApiError && thrown.status === 404;
      if (!isDeleted) throw thrown;
      break;
    }
  }
  return runs;
}

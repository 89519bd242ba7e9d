// A run, and the runs that go on with it after approvals, as they change.

import { useRef } from "../html.js";
import { statusOf } from "../components/status.js";
import { request } from "./api.js";
import { usePolled } from "./polling.js";

const EVERY_MS = 700;

/**
 * @param {string} id of the first one
 * @returns {{runs: any[], error: Error | null, reload: () => void}} the run first; empty until the first answer
 */
export function useRunChain(id) {
  const known = useRef(/** @type {any[]} */ ([]));
  const polled = usePolled(
    async (signal) => {
      const before = known.current[0]?.id === id ? known.current : [];
      const last = before.at(-1);
      if (last !== undefined && isOver(last)) return before;
      const fresh = await request("GET", `/v1/runs/${encodeURIComponent(last?.id ?? id)}`, { signal });
      const runs = [...before.slice(0, -1), fresh];
      const next = statusOf(fresh) === "requires_approval" ? await continuationOf(fresh, signal) : undefined;
      known.current = next === undefined ? runs : [...runs, next];
      return known.current;
    },
    EVERY_MS,
    [id],
  );
  const runs = polled.data.value ?? [];
  return { runs: runs[0]?.id === id ? runs : [], error: polled.error.value, reload: polled.reload };
}

/** @param {any} run */
export function isActive(run) {
  return run.status === "created" || run.status === "running";
}

/** @param {any} run */
function isOver(run) {
  return !isActive(run) && statusOf(run) !== "requires_approval";
}

/**
 * The run that goes on where this one asked a person; undefined while nobody has decided.
 * @param {any} run
 * @param {AbortSignal} signal
 */
async function continuationOf(run, signal) {
  const query = { agent_id: run.agent_id, after: run.id, order: "asc", limit: 100 };
  const runs = await request("GET", "/v1/runs", { query, signal });
  return runs.find((/** @type {any} */ one) => one.metadata?.continues_run_id === run.id);
}

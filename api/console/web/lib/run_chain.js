// A run, and the runs that go on with it after approvals, as they change.

import { useRef } from "../html.js";
import { statusOf } from "../components/status.js";
import { request } from "./api.js";
import { usePolled } from "./polling.js";

const EVERY_MS = 700;

/** @type {{runs: any[], lookedUpTo: string | null}} the chain, and up to which run its next one was looked for */
const NOTHING = { runs: [], lookedUpTo: null };

/**
 * @param {string} id of the first one
 * @returns {{runs: any[], error: Error | null, reload: () => void}} the run first; empty until the first answer
 */
export function useRunChain(id) {
  const known = useRef(NOTHING);
  const polled = usePolled(
    async (signal) => {
      const before = known.current.runs[0]?.id === id ? known.current : NOTHING;
      const last = before.runs.at(-1);
      if (last !== undefined && isOver(last)) return before.runs;
      const fresh = await request("GET", `/v1/runs/${encodeURIComponent(last?.id ?? id)}`, { signal });
      const runs = [...before.runs.slice(0, -1), fresh];
      const later = statusOf(fresh) === "requires_approval" ? await laterRuns(fresh, before.lookedUpTo, signal) : [];
      const next = later.find((one) => one.metadata?.continues_run_id === fresh.id);
      if (next === undefined) known.current = { runs, lookedUpTo: later.at(-1)?.id ?? before.lookedUpTo };
      else known.current = { runs: [...runs, next], lookedUpTo: null };
      return known.current.runs;
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
 * The runs of a parked run's own history behind it, oldest first: the one that goes on with it is among them as soon as its
 * calls are decided. Runs are listed in the order in which they were stored, so none comes in before `lookedUpTo` later on.
 * @param {any} run
 * @param {string | null} lookedUpTo the last one that was looked at; null: none was
 * @param {AbortSignal} signal
 * @returns {Promise<any[]>}
 */
async function laterRuns(run, lookedUpTo, signal) {
  const history = { agent_id: run.agent_id, conversation_id: run.conversation_id ?? "default" };
  return request("GET", "/v1/runs", { query: { ...history, after: lookedUpTo ?? run.id, order: "asc", limit: 100 }, signal });
}

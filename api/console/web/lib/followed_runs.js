// Which runs of a history a talk follows: those that go on or wait, the last one that has ended, and those that failed
// without a trace in the history. It asks nobody.

/**
 * @typedef {{id: string, status: string, stop_reason: string | null, conversation_id: string | null,
 *   metadata: any}} Run as the API lists it
 *
 * @typedef {Run[]} Chain a run that is followed, and those that go on with it after approvals
 */

/**
 * Chains that have ended and are shown as they were followed, since somebody may just be reading what came of them. What
 * is older is in the history, and must not keep its events in a tab that is open for days.
 */
const KEPT_ENDED = 1;

/** @param {Run} run */
export function isOpen(run) {
  return run.status === "created" || run.status === "running";
}

/**
 * The run that waits for a person; undefined where none does. A run that was decided has a run that goes on with it.
 * @param {Run[]} runs
 */
export function waitingRun(runs) {
  const goneOn = new Set(runs.map((run) => run.metadata?.continues_run_id));
  return runs.find((run) => isParked(run) && !goneOn.has(run.id));
}

/** @param {Run} run */
function isParked(run) {
  return run.status === "completed" && run.stop_reason === "requires_approval";
}

/**
 * Whether nothing of the runs is among the messages of the history.
 * @param {Chain} chain
 * @param {any[]} messages
 */
export function leftNothing(chain, messages) {
  return !messages.some((message) => chain.some((run) => run.id === message.run_id));
}

/**
 * What is followed, oldest first, after the runs and the messages of the history were listed again.
 * @param {Chain[]} before
 * @param {Run[]} runs newest first, at least back to the first that has not ended
 * @param {any[]} messages
 * @returns {Chain[]}
 */
export function followedRuns(before, runs, messages) {
  const listed = new Map(runs.map((run) => [run.id, run]));
  const waiting = waitingRun(runs);
  const goesOn = (/** @type {Run} */ run) => isOpen(run) || run.id === waiting?.id;
  const chains = before.map((chain) => chain.map((run) => listed.get(run.id) ?? run));
  const known = new Set(chains.flat().map((run) => run.id));
  for (const run of runs.toReversed().filter((one) => !known.has(one.id))) {
    const chain = chains.find((one) => one.at(-1)?.id === run.metadata?.continues_run_id);
    if (chain !== undefined) chain.push(run);
    else if (goesOn(run)) chains.push([run]);
  }
  const isListed = (/** @type {Chain} */ chain) => chain.some((run) => listed.has(run.id));
  const hasEnded = (/** @type {Chain} */ chain) => !chain.some((run) => listed.has(run.id) && goesOn(run));
  const hasFailed = (/** @type {Chain} */ chain) => isListed(chain) && chain.at(-1)?.status === "failed";
  const kept = new Set(chains.filter(hasEnded).slice(-KEPT_ENDED));
  return chains.filter(
    (chain) => kept.has(chain) || !hasEnded(chain) || (hasFailed(chain) && leftNothing(chain, messages)),
  );
}

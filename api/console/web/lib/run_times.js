// Times of a run in ms, as far as the wire shows them.

import { moment } from "./format.js";

/** @param {any} run */
export function durationOf(run) {
  return typeof run.total_duration_ns === "number" ? run.total_duration_ns / 1e6 : null;
}

/** @param {any} run */
export function queueWaitOf(run) {
  return own(run).queue_wait_ms ?? null;
}

/**
 * @param {any} run
 * @param {number | null} [shownAt] Unix ms of the first piece in its stream: the run has it once a step is stored
 */
export function firstTokenOf(run, shownAt = null) {
  const began = moment(run.created_at)?.getTime();
  const shown = shownAt === null || began === undefined ? null : Math.max(0, shownAt - began);
  return own(run).first_token_ms ?? (typeof run.ttft_ns === "number" ? run.ttft_ns / 1e6 : shown);
}

/** @param {any} run */
export function stepsOf(run) {
  return own(run).step_count ?? null;
}

/** @param {any} run */
export function tokensOf(run) {
  const { prompt_tokens: asked, completion_tokens: answered } = own(run);
  return asked === undefined && answered === undefined ? null : (asked ?? 0) + (answered ?? 0);
}

/**
 * Unix ms of the run's claim by a worker.
 * @param {any} run
 */
export function startedAtOf(run) {
  return moment(own(run).started_at)?.getTime() ?? null;
}

/**
 * Unix ms of the run's end.
 * @param {any} run
 */
export function endedAtOf(run) {
  return moment(run.completed_at)?.getTime() ?? null;
}

/** @param {any} run */
function own(run) {
  return run?.metadata?.holdfast ?? run?.metadata ?? {};
}

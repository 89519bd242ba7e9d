// The status of a run, as a word and a colour. The word alone suffices.

import { html } from "../html.js";

/** @type {Record<string, string>} */
const KINDS = {
  created: "waits",
  running: "works",
  completed: "good",
  failed: "bad",
  cancelled: "ended",
  requires_approval: "asks",
};

/** @typedef {{status: string, stop_reason?: string | null, metadata?: Record<string, any> | null}} ShownRun */

/**
 * The wire shows a run that waits for a person as completed, also after another run has continued it.
 * @param {ShownRun} run
 */
export function statusOf({ status, stop_reason: stopReason, metadata }) {
  const isParked = status === "completed" && stopReason === "requires_approval" && !metadata?.continued_by_run_id;
  return isParked ? "requires_approval" : status;
}

/** @param {{run: ShownRun}} props */
export function Status({ run }) {
  const shown = statusOf(run);
  const word = shown === "requires_approval" ? "needs approval" : shown;
  return html`<span class=${`status status-${KINDS[shown] ?? "ended"}`}>${word}</span>`;
}

// What has become of a run, in a word and a colour. The word alone says it, too.

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

/**
 * The wire shows a run that waits for a person as completed.
 * @param {{status: string, stop_reason?: string | null}} run
 */
export function statusOf(run) {
  return run.status === "completed" && run.stop_reason === "requires_approval" ? "requires_approval" : run.status;
}

/** @param {{status: string, stopReason?: string | null}} props */
export function Status({ status, stopReason }) {
  const shown = statusOf({ status, stop_reason: stopReason });
  const word = shown === "requires_approval" ? "needs approval" : shown;
  return html`<span class=${`status status-${KINDS[shown] ?? "ended"}`}>${word}</span>`;
}

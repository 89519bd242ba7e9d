// The last hour, minute by minute: submitted runs, their ends, and their waits.

import { html, useMemo } from "../html.js";
import { duration, number } from "../lib/format.js";
import { Chart } from "./chart.js";
import { Empty } from "./basics.js";

/** @typedef {import("../pages/operations.js").Minute} Minute */

/** @param {{minutes: Minute[]}} props */
export function LastHour({ minutes }) {
  const times = useMemo(() => minutes.map((minute) => Date.parse(minute.at) / 1000), [minutes]);
  return html`<section aria-labelledby="last-hour-title">
    <h2 id="last-hour-title">The last hour, per minute</h2>
    ${minutes.length === 0
      ? html`<${Empty} title="There are no figures of the last hour"><p>The database does not answer.</p><//>`
      : html`<div class="charts">
          <${Chart} title="Runs" times=${times} lines=${runLines(minutes)} show=${number} />
          <${Chart} title="Waits, p50" times=${times} lines=${waitLines(minutes)} show=${duration} />
        </div>`}
  </section>`;
}

/** @param {Minute[]} minutes */
function runLines(minutes) {
  return [
    { label: "submitted", color: "--chart-1", values: minutes.map((minute) => minute.submitted) },
    { label: "completed", color: "--chart-2", values: minutes.map((minute) => minute.completed) },
    { label: "failed", color: "--chart-3", values: minutes.map((minute) => minute.failed) },
    { label: "cancelled", color: "--chart-4", values: minutes.map((minute) => minute.cancelled) },
  ];
}

/** @param {Minute[]} minutes */
function waitLines(minutes) {
  return [
    { label: "wait in the queue", color: "--chart-1", values: minutes.map((minute) => minute.queue_wait_p50_ms) },
    { label: "time to first token", color: "--chart-2", values: minutes.map((minute) => minute.first_token_p50_ms) },
  ];
}

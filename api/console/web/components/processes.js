// The processes of the deployment: workers with their load, API processes with their readers.

import { html } from "../html.js";
import { number } from "../lib/format.js";
import { Empty, Time } from "./basics.js";

/** @typedef {import("../pages/operations.js").WorkerShown} WorkerShown */
/** @typedef {import("../pages/operations.js").ApiProcessShown} ApiProcessShown */

/** @param {{workers: WorkerShown[] | null}} props */
export function Workers({ workers }) {
  return html`<section aria-labelledby="workers-title">
    <h2 id="workers-title">Workers</h2>
    ${workers === null && html`<${RedisIsAway} />`}
    ${workers?.length === 0 &&
    html`<${Empty} title="No worker is seen">
      <p>Runs are accepted and wait. Start one with <code>holdfast worker</code>; it is seen here within seconds.</p>
    <//>`}
    ${workers !== null && workers.length > 0 &&
    html`<div class="scroll" tabindex="0" role="group" aria-labelledby="workers-title">
      <table>
        <thead>
          <tr>
            <th scope="col">Worker</th><th scope="col">Load</th><th scope="col">Walls</th><th scope="col">Version</th>
            <th scope="col">Started</th><th scope="col">Seen</th>
          </tr>
        </thead>
        <tbody>${workers.map((worker) => html`<${WorkerRow} key=${worker.name} worker=${worker} />`)}</tbody>
      </table>
    </div>`}
  </section>`;
}

function RedisIsAway() {
  return html`<p class="quiet-text">Redis does not answer, so the live processes are unknown.</p>`;
}

/** @param {{worker: WorkerShown}} props */
function WorkerRow({ worker }) {
  const load = `${number(worker.runs)} of ${number(worker.max_runs)} runs`;
  return html`<tr>
    <th scope="row">${worker.name}</th>
    <td>
      <meter min="0" max=${worker.max_runs || 1} value=${worker.runs} aria-label=${`Load of ${worker.name}: ${load}`} />
      ${" "}${load}
    </td>
    <td>${worker.sandbox}</td>
    <td>${worker.version}</td>
    <td><${Time} at=${worker.started_at} /></td>
    <td><${Time} at=${worker.seen_at} /></td>
  </tr>`;
}

/** @param {{processes: ApiProcessShown[] | null}} props */
export function ApiProcesses({ processes }) {
  return html`<section aria-labelledby="api-title">
    <h2 id="api-title">API processes</h2>
    ${processes === null && html`<${RedisIsAway} />`}
    ${processes !== null &&
    html`<div class="scroll" tabindex="0" role="group" aria-labelledby="api-title">
      <table>
        <thead>
          <tr>
            <th scope="col">Process</th><th scope="col" class="figure">Readers</th><th scope="col">Version</th>
            <th scope="col">Started</th><th scope="col">Seen</th>
          </tr>
        </thead>
        <tbody>${processes.map((process) => html`<${ApiProcessRow} key=${process.name} process=${process} />`)}</tbody>
      </table>
    </div>`}
  </section>`;
}

/** @param {{process: ApiProcessShown}} props */
function ApiProcessRow({ process }) {
  return html`<tr>
    <th scope="row">${process.name}</th>
    <td class="figure">${number(process.readers)}</td>
    <td>${process.version}</td>
    <td><${Time} at=${process.started_at} /></td>
    <td><${Time} at=${process.seen_at} /></td>
  </tr>`;
}

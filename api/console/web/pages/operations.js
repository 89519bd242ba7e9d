// The activity of the deployment, now and in the last hour. It shows the figures of `GET /v1/admin/operations`, and
// counts nothing itself.

import { html } from "../html.js";
import { Callbacks } from "../components/callbacks.js";
import { Empty, Failure } from "../components/basics.js";
import { LastHour } from "../components/last_hour.js";
import { ApiProcesses, Workers } from "../components/processes.js";
import { ApiError, request } from "../lib/api.js";
import { bytes, duration, number } from "../lib/format.js";
import { usePolled } from "../lib/polling.js";

/**
 * @typedef {{p50: number, p95: number, p99: number} | null} Percentiles milliseconds
 * @typedef {{name: string, version: string, started_at: string, seen_at: string, runs: number, max_runs: number,
 *   sandbox: string, javascript: unknown}} WorkerShown
 * @typedef {{name: string, version: string, started_at: string, seen_at: string, readers: number}} ApiProcessShown
 * @typedef {{at: string, submitted: number, completed: number, failed: number, cancelled: number,
 *   queue_wait_p50_ms: number | null, first_token_p50_ms: number | null}} Minute
 * @typedef {{
 *   at: string, version: string,
 *   services: Record<"database" | "database_writes" | "migrations" | "redis" | "redis_writes" | "worker",
 *     boolean | null>,
 *   database: {kind: string, answers_ms: number | null},
 *   redis: {embedded: boolean, answers_ms: number | null, used_memory_bytes: number | null,
 *     max_memory_bytes: number | null},
 *   workers: WorkerShown[] | null, api_processes: ApiProcessShown[] | null,
 *   queue: {waiting: number | null, oldest_wait_s: number | null, in_flight: number | null},
 *   runs: Record<"created" | "running" | "awaiting_approval", number> | null,
 *   ended_last_hour: Record<"completed" | "failed" | "cancelled", number> | null,
 *   queue_wait_ms: Percentiles, first_token_ms: Percentiles,
 *   callbacks: {waiting: number, failing: number} | null, last_hour: Minute[] | null,
 * }} Operations null: the service with the value is away
 */

const EVERY_MS = 2000;

export function OperationsPage() {
  const { data, error, reload } = usePolled(
    (signal) => /** @type {Promise<Operations>} */ (request("GET", "/v1/admin/operations", { signal })),
    EVERY_MS,
    [],
  );
  const refused = error.value instanceof ApiError && error.value.status === 403;
  return html`
    <h1>Operations</h1>
    ${refused && html`<${NeedsAdmin} said=${error.value?.message ?? ""} />`}
    ${error.value && !refused && html`<${Failure} error=${error.value} retry=${reload} />`}
    ${!data.value && !error.value && html`<p role="status">The figures are being fetched.</p>`}
    ${data.value && !refused && html`<${Figures} now=${data.value} /><${Callbacks} />`}
  `;
}

/** @param {{said: string}} props */
function NeedsAdmin({ said }) {
  return html`<${Empty} title="This page needs a key with the scope “admin”">
    <p>The server said: ${said}</p>
    <p>
      Make one with <code>holdfast keys create --name console --scope admin</code>, or ask this deployment's operator.
      The other pages work with the key that you have.
    </p>
  <//>`;
}

/** @param {{now: Operations}} props */
function Figures({ now }) {
  return html`<${Services} now=${now} />
    <${Tiles} now=${now} />
    <${Percentages} now=${now} />
    <${LastHour} minutes=${now.last_hour ?? []} />
    <${Workers} workers=${now.workers} />
    <${ApiProcesses} processes=${now.api_processes} />`;
}

/** @param {{now: Operations}} props */
function Services({ now }) {
  const { database, redis, services } = now;
  return html`<section aria-labelledby="services-title">
    <h2 id="services-title">Services</h2>
    <ul class="services">
      <${Service} name="Database" works=${services.database && services.database_writes !== false}>
        ${services.database && services.database_writes === false && "refuses writes; "}
        ${database.kind}, answers in ${duration(database.answers_ms)}
      <//>
      <${Service} name="Migrations" works=${services.migrations}>
        ${services.migrations === null && "only the database knows"}
        ${services.migrations === true && "the database has this release's shape"}
        ${services.migrations === false && "run holdfast migrate"}
      <//>
      <${Service} name="Redis" works=${services.redis && services.redis_writes !== false}>
        ${services.redis && services.redis_writes === false && "refuses writes; "}
        ${redis.embedded ? "in this process" : `answers in ${duration(redis.answers_ms)}, memory ${memoryOf(redis)}`}
      <//>
      <${Service} name="Worker" works=${services.worker}>
        ${services.worker === null && "only Redis knows"}
        ${services.worker === true && `${number(now.workers?.length)} seen`}
        ${services.worker === false && "none is seen: runs wait until one starts"}
      <//>
      <li><strong>Version</strong><span class="quiet-text">${now.version}</span></li>
    </ul>
  </section>`;
}

/** @param {Operations["redis"]} redis */
function memoryOf(redis) {
  const used = bytes(redis.used_memory_bytes);
  return redis.max_memory_bytes ? `${used} of ${bytes(redis.max_memory_bytes)}` : `${used}, no limit`;
}

/** @param {{name: string, works: boolean | null, children?: any}} props `works` is null if unknown */
function Service({ name, works, children }) {
  const [look, said] = works === null ? ["ended", "unknown"] : works ? ["good", "works"] : ["bad", "away"];
  return html`<li class=${works ? "works" : "broken"}>
    <strong>${name}</strong>
    <span class=${`status status-${look}`}>${said}</span>
    <span class="quiet-text">${children}</span>
  </li>`;
}

/** @param {{now: Operations}} props */
function Tiles({ now }) {
  const { queue } = now;
  const readers = now.api_processes?.reduce((sum, process) => sum + process.readers, 0);
  const oldest = queue.oldest_wait_s === null ? null : queue.oldest_wait_s * 1000;
  return html`<section aria-labelledby="queue-title">
    <h2 id="queue-title">Now</h2>
    <dl class="tiles">
      <${Tile} name="Waiting in the queue" value=${number(queue.waiting)} />
      <${Tile} name="Oldest wait" value=${duration(oldest)} />
      <${Tile} name="At a worker" value=${number(queue.in_flight)} />
      <${Tile} name="Readers" value=${number(readers)} />
      <${Tile} name="Runs created" value=${number(now.runs?.created)} to="#/runs?status=created" />
      <${Tile} name="Runs running" value=${number(now.runs?.running)} to="#/runs?status=running" />
      <${Tile} name="Waiting for a person" value=${number(now.runs?.awaiting_approval)} to="#/approvals" />
      <${Tile} name="Completed in the last hour" value=${number(now.ended_last_hour?.completed)} />
      <${Tile} name="Failed in the last hour" value=${number(now.ended_last_hour?.failed)} />
      <${Tile} name="Cancelled in the last hour" value=${number(now.ended_last_hour?.cancelled)} />
      <${Tile} name="Callbacks waiting" value=${number(now.callbacks?.waiting)} />
      <${Tile} name="Callbacks failing" value=${number(now.callbacks?.failing)} />
    </dl>
    <p class="quiet-text">
      Runs and callbacks are those of your key's project; the queue, workers and readers are the whole deployment's.
    </p>
  </section>`;
}

/** @param {{name: string, value: string, to?: string}} props */
function Tile({ name, value, to }) {
  return html`<div><dt>${name}</dt><dd>${to ? html`<a href=${to}>${value}</a>` : value}</dd></div>`;
}

/** @param {{now: Operations}} props */
function Percentages({ now }) {
  /** @type {[string, Percentiles][]} */
  const rows = [["Wait in the queue", now.queue_wait_ms], ["Time to first token", now.first_token_ms]];
  return html`<section aria-labelledby="percentiles-title">
    <h2 id="percentiles-title">Runs of the last hour</h2>
    <div class="scroll" tabindex="0" role="group" aria-labelledby="percentiles-title">
      <table>
        <thead>
          <tr>
            <th scope="col">Time</th><th scope="col" class="figure">p50</th>
            <th scope="col" class="figure">p95</th><th scope="col" class="figure">p99</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            ([name, values]) => html`<tr>
              <th scope="row">${name}</th>
              <td class="figure">${duration(values?.p50)}</td>
              <td class="figure">${duration(values?.p95)}</td>
              <td class="figure">${duration(values?.p99)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

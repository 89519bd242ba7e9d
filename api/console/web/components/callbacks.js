// Callbacks and webhook events that wait or failed: the time of the next attempt, the receiver's answer, and a way to try
// it now.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { number } from "../lib/format.js";
import { usePaged } from "../lib/paged.js";
import { Empty, Failure, Time } from "./basics.js";
import { Pager } from "./pager.js";

/**
 * @typedef {{run_id: string, url: string | null, attempts: number, next_attempt_at: string | null,
 *   last_status_code: number | null, last_error: string | null, created_at: string, webhook_id?: string}} Callback
 */

/**
 * The names and paths of the two outboxes.
 * @typedef {{name: string, path: string, title: string, none: string, about: import("../html.js").ComponentChildren,
 *   idOf: (row: Callback) => string, placeOf: (row: Callback) => string}} Outbox
 */

const PAGE = 25;
const EVERY_MS = 3000;

/** @type {Outbox} */
const CALLBACKS = {
  name: "callbacks",
  path: "/v1/admin/callbacks",
  title: "Callbacks that wait or failed",
  none: "No callback waits",
  about: html`A run that was submitted with <code>callback_url</code> stands here from its end until its receiver has
    answered.`,
  idOf: (row) => row.run_id,
  placeOf: (row) => row.run_id,
};

/** @type {Outbox} */
const WEBHOOKS = {
  name: "webhooks",
  path: "/v1/admin/webhooks",
  title: "Events of webhooks that wait or failed",
  none: "No webhook waits",
  about: html`A background response stands here from its end until each webhook endpoint of the project that wants to
    hear of it has answered.`,
  idOf: (row) => `${row.run_id}.${row.webhook_id}`,
  placeOf: (row) => `${row.run_id}/${row.webhook_id}`,
};

export const Callbacks = () => html`<${OpenDeliveries} of=${CALLBACKS} /><${OpenDeliveries} of=${WEBHOOKS} />`;

/** @param {{of: Outbox}} props */
function OpenDeliveries({ of }) {
  const list = usePaged(of.path, {}, { size: PAGE, when: EVERY_MS, idOf: of.idOf });
  return html`<section aria-labelledby="${of.name}-title">
    <h2 id="${of.name}-title">${of.title}</h2>
    ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    ${list.rows?.length === 0 && html`<${Empty} title=${of.none}><p>${of.about}</p><//>`}
    ${list.rows !== undefined && list.rows.length > 0 && html`<${Table} of=${of} rows=${list.rows} reload=${list.reload} />`}
    <${Pager} ...${list} of=${of.name} />
  </section>`;
}

/** @param {{of: Outbox, rows: Callback[], reload: () => void}} props */
function Table({ of, rows, reload }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-labelledby="${of.name}-title">
    <table>
      <thead>
        <tr>
          <th scope="col">Run</th><th scope="col">Receiver</th><th scope="col" class="figure">Attempts</th>
          <th scope="col">Answered</th><th scope="col">Next attempt</th><th scope="col">Action</th>
        </tr>
      </thead>
      <tbody>${rows.map((row) => html`<${Row} key=${of.idOf(row)} of=${of} row=${row} reload=${reload} />`)}</tbody>
    </table>
  </div>`;
}

/** @param {{of: Outbox, row: Callback, reload: () => void}} props */
function Row({ of, row, reload }) {
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const retry = async () => {
    setBusy(true);
    try {
      await request("POST", `${of.path}/${of.placeOf(row)}/retry`);
      setSaid("It is tried again now.");
      reload();
    } catch (error) {
      setSaid(/** @type {Error} */ (error).message);
    } finally {
      setBusy(false);
    }
  };
  const answered = [row.last_status_code, row.last_error].filter((part) => part !== null).join(": ");
  return html`<tr>
    <th scope="row"><a href=${`#/runs/${row.run_id}`}>${row.run_id}</a></th>
    <td class="long">${row.url ?? "an endpoint that was deleted"}</td>
    <td class="figure">${number(row.attempts)}</td>
    <td class="long">${answered || "nothing yet"}</td>
    <td>${row.next_attempt_at ? html`<${Time} at=${row.next_attempt_at} />` : "given up"}</td>
    <td>
      <button
        type="button" disabled=${busy} aria-label=${`Retry now: ${row.run_id}`} onClick=${retry}
      >Retry now</button>
      ${" "}<span role="status">${said}</span>
    </td>
  </tr>`;
}

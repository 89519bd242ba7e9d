// Callbacks that wait or failed: when each is tried again, what the receiver said, and a way to try it now.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { number } from "../lib/format.js";
import { usePaged } from "../lib/paged.js";
import { Empty, Failure, Time } from "./basics.js";
import { Pager } from "./pager.js";

/**
 * @typedef {{run_id: string, url: string, attempts: number, next_attempt_at: string | null,
 *   last_status_code: number | null, last_error: string | null, created_at: string}} Callback
 */

const PAGE = 25;
const EVERY_MS = 3000;

/** @param {Callback} row */
const idOf = (row) => row.run_id;

export function Callbacks() {
  const list = usePaged("/v1/admin/callbacks", {}, { size: PAGE, everyMs: EVERY_MS, idOf });
  return html`<section aria-labelledby="callbacks-title">
    <h2 id="callbacks-title">Callbacks that wait or failed</h2>
    ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    ${list.rows?.length === 0 &&
    html`<${Empty} title="No callback waits">
      <p>
        A run that was submitted with <code>callback_url</code> stands here from its end until its receiver has
        answered.
      </p>
    <//>`}
    ${list.rows !== undefined && list.rows.length > 0 && html`<${Table} rows=${list.rows} reload=${list.reload} />`}
    <${Pager} ...${list} of="callbacks" />
  </section>`;
}

/** @param {{rows: Callback[], reload: () => void}} props */
function Table({ rows, reload }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-labelledby="callbacks-title">
    <table>
      <thead>
        <tr>
          <th scope="col">Run</th><th scope="col">Receiver</th><th scope="col" class="figure">Attempts</th>
          <th scope="col">Answered</th><th scope="col">Next attempt</th><th scope="col">Action</th>
        </tr>
      </thead>
      <tbody>${rows.map((row) => html`<${Row} key=${row.run_id} row=${row} reload=${reload} />`)}</tbody>
    </table>
  </div>`;
}

/** @param {{row: Callback, reload: () => void}} props */
function Row({ row, reload }) {
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const retry = async () => {
    setBusy(true);
    try {
      await request("POST", `/v1/admin/callbacks/${row.run_id}/retry`);
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
    <td class="long">${row.url}</td>
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

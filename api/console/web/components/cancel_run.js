// Cancels a run, and shows the receipt.

import { html, useState } from "../html.js";
import { request } from "../lib/api.js";
import { duration, moment, NOTHING } from "../lib/format.js";
import { Failure, Time } from "./basics.js";
import { Dialog } from "./dialog.js";
import { statusOf } from "./status.js";

/** @param {{run: any, onCancelled: () => void}} props */
export function CancelRun({ run, onCancelled }) {
  const [isAsked, setIsAsked] = useState(false);
  const [receipt, setReceipt] = useState(/** @type {any} */ (null));
  const canStop = ["created", "running", "requires_approval"].includes(statusOf(run));
  const recorded = receiptOf(run, canStop, receipt);
  return html`
    ${canStop && html`<p><button type="button" class="danger" onClick=${() => setIsAsked(true)}>Cancel this run…</button></p>`}
    ${recorded && html`<${Receipt} receipt=${recorded} />`}
    ${isAsked &&
    html`<${CancelDialog} run=${run} onClose=${() => setIsAsked(false)} onReceipt=${(/** @type {any} */ found) => {
      setReceipt(found);
      setIsAsked(false);
      onCancelled();
    }} />`}
  `;
}

/**
 * The present outcome of a cancel; null without a cancel. The server's answer may be outdated: if the run has stopped
 * since, the run has the outcome.
 * @param {any} run
 * @param {boolean} canStop
 * @param {any} answered the server's answer to this page; null if another caller has cancelled
 */
function receiptOf(run, canStop, answered) {
  const asked = run.metadata?.cancel;
  if (!asked) return answered;
  if (!canStop) return { ...answered, ...asked, status: run.status, stopped_at: run.completed_at };
  // The answer may be newer than this page's copy of the run.
  return answered?.stopped_at ? answered : { ...answered, ...asked, status: "cancelling", stopped_at: null };
}

/** @param {{run: any, onClose: () => void, onReceipt: (receipt: any) => void}} props */
function CancelDialog({ run, onClose, onReceipt }) {
  const [mode, setMode] = useState("interrupt");
  const [reason, setReason] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isSending, setIsSending] = useState(false);
  /** @param {Event} event */
  const cancel = async (event) => {
    event.preventDefault();
    setIsSending(true);
    setError(null);
    try {
      onReceipt(await request("POST", `/v1/runs/${run.id}/cancel`, { body: { mode, reason: reason || null } }));
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
      setIsSending(false);
    }
  };
  return html`
    <${Dialog} title="Cancel this run" onClose=${onClose}>
      <form class="stack" onSubmit=${cancel}>
        <label>How
          <select value=${mode} onChange=${(/** @type {any} */ event) => setMode(event.currentTarget.value)}>
            <option value="interrupt">Interrupt: stop at once, end tools that run</option>
            <option value="after_step">After the step: let the model and its tools finish</option>
            <option value="rollback">Roll back: stop at once, take the run's messages out of the history</option>
          </select>
        </label>
        <label>Reason, for the record
          <input value=${reason} maxlength="2000" onInput=${(/** @type {any} */ event) => setReason(event.currentTarget.value)} />
        </label>
        <${Failure} error=${error} />
        <div class="buttons">
          <button type="button" onClick=${onClose}>Let it run</button>
          <button type="submit" class="danger" disabled=${isSending}>${isSending ? "Cancelling…" : "Cancel the run"}</button>
        </div>
      </form>
    <//>
  `;
}

/** @param {{receipt: any}} props */
function Receipt({ receipt }) {
  return html`
    <section class="panel receipt" aria-labelledby="receipt-title">
      <h2 id="receipt-title">Receipt of the cancel</h2>
      <dl class="facts">
        <div><dt>Now</dt><dd>${receipt.status}</dd></div>
        <div><dt>Requested</dt><dd><${Time} at=${receipt.requested_at} /></dd></div>
        <div><dt>Acknowledged</dt><dd><${Time} at=${receipt.acknowledged_at} /></dd></div>
        <div><dt>Stopped</dt><dd><${Time} at=${receipt.stopped_at} /></dd></div>
        <div><dt>Took</dt><dd>${tookOf(receipt)}</dd></div>
        <div><dt>Mode</dt><dd>${receipt.mode}</dd></div>
        <div><dt>By</dt><dd>${receipt.actor}</dd></div>
        ${receipt.reason && html`<div><dt>Reason</dt><dd>${receipt.reason}</dd></div>`}
      </dl>
    </section>
  `;
}

/** The time from the request to the stop. @param {any} receipt */
function tookOf(receipt) {
  const [from, to] = [moment(receipt.requested_at), moment(receipt.stopped_at)];
  return from === null || to === null ? NOTHING : duration(to.getTime() - from.getTime());
}

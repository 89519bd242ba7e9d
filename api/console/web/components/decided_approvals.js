// The calls that were decided, newest first: how, by whom and when, and with what changes.

import { html } from "../html.js";
import { usePaged } from "../lib/paged.js";
import { ApprovalCard } from "./approval.js";
import { Empty, Failure } from "./basics.js";
import { Pager } from "./pager.js";

/** @typedef {import("../lib/approvals.js").Approval} Approval */

const PAGE = 25;
const EVERY_MS = 5000;

/** @param {Approval} approval */
const idOf = (approval) => approval.id;

/** @param {{agentId: string}} props */
export function DecidedApprovals({ agentId }) {
  const query = { decided: true, agent_id: agentId };
  const list = usePaged("/v1/approvals", query, { size: PAGE, everyMs: EVERY_MS, idOf });
  if (list.error && list.rows === undefined) return html`<${Failure} error=${list.error} retry=${list.reload} />`;
  if (list.rows === undefined) return html`<p role="status">The decisions are being fetched.</p>`;
  if (list.rows.length === 0) {
    return html`<${Empty} title="Nothing has been decided yet">
      <p>Decisions stand here with who made them and when, once somebody has approved or denied a call.</p>
    <//>`;
  }
  return html`<ul class="cards">
      ${list.rows.map((approval) => html`<li key=${approval.id}><${ApprovalCard} approval=${approval} /></li>`)}
    </ul>
    <${Pager} ...${list} of="decided approvals" />`;
}

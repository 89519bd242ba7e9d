// The decided calls, newest first, each with the decision, the person, the time and the changes.

import { html } from "../html.js";
import { usePaged } from "../lib/paged.js";
import { href } from "../lib/routing.js";
import { ApprovalCard } from "./approval.js";
import { Empty, Failure } from "./basics.js";
import { EmptyPage, Pager } from "./pager.js";

/** @typedef {import("../lib/approvals.js").Approval} Approval */

const PAGE = 25;

/** @param {Approval} approval */
const idOf = (approval) => approval.id;

/** @param {{agentId: string}} props */
export function DecidedApprovals({ agentId }) {
  const query = { decided: true, agent_id: agentId };
  const list = usePaged("/v1/approvals", query, { size: PAGE, when: { agentId: agentId || null }, idOf });
  if (list.error && list.rows === undefined) return html`<${Failure} error=${list.error} retry=${list.reload} />`;
  if (list.rows === undefined) return html`<p role="status">The decisions are being fetched.</p>`;
  if (list.rows.length === 0 && list.first !== null) {
    return html`<${EmptyPage} ...${list} of="decided approvals" why="The decisions on this page are no longer stored." />`;
  }
  if (list.rows.length === 0) return html`<${NothingDecided} agentId=${agentId} />`;
  return html`<ul class="cards">
      ${list.rows.map((approval) => html`<li key=${approval.id}><${ApprovalCard} approval=${approval} /></li>`)}
    </ul>
    <${Pager} ...${list} of="decided approvals" />`;
}

/** @param {{agentId: string}} props */
function NothingDecided({ agentId }) {
  return html`<${Empty} title=${agentId ? "Nothing of this agent has been decided yet" : "Nothing has been decided yet"}>
    <p>This page lists decisions, each with its person and time, once a person has approved or denied a call.</p>
    <p><a href=${href("/approvals", { agent: agentId })}>Show the calls to decide</a></p>
    ${agentId && html`<p><a href="#/approvals?show=decided">Show those of all agents</a></p>`}
  <//>`;
}

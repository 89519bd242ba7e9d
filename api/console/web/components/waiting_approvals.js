// The waiting calls, oldest first: a person decides each in its place, or many at once.

import { html, useEffect, useMemo, useState } from "../html.js";
import { usePaged } from "../lib/paged.js";
import { href } from "../lib/routing.js";
import { ApprovalCard } from "./approval.js";
import { DecideMany } from "./decide_many.js";
import { Empty, Failure } from "./basics.js";
import { EmptyPage, Pager } from "./pager.js";

/** @typedef {import("../lib/approvals.js").Approval} Approval */

const PAGE = 50;

/** @param {Approval} approval */
const idOf = (approval) => approval.id;

/** @param {{agentId: string}} props */
export function WaitingApprovals({ agentId }) {
  const list = usePaged("/v1/approvals", { agent_id: agentId }, { size: PAGE, when: { agentId: agentId || null }, idOf });
  // A call that was decided here stays in its place, so that the list does not move under a person's hands.
  const [decided, setDecided] = useState(/** @type {Record<string, Approval>} */ ({}));
  const [chosen, setChosen] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const [refused, setRefused] = useState(/** @type {Record<string, string>} */ ({}));
  useEffect(() => {
    setDecided({});
    setChosen(new Set());
    setRefused({});
  }, [agentId, list.page]);
  const shown = useMemo(() => together(list.rows ?? [], decided), [list.rows, decided]);
  const note = (/** @type {Approval} */ approval) => setDecided((before) => ({ ...before, [approval.id]: approval }));
  const say = (/** @type {string} */ id, /** @type {string} */ text) =>
    setRefused((before) => ({ ...before, [id]: text }));

  if (list.error && list.rows === undefined) return html`<${Failure} error=${list.error} retry=${list.reload} />`;
  if (list.rows === undefined) return html`<p role="status">Fetching the waiting calls…</p>`;
  if (shown.length === 0 && list.first !== null) {
    return html`<${EmptyPage} ...${list} of="waiting approvals" why="The calls on this page have been decided." />`;
  }
  if (shown.length === 0) return html`<${NothingWaits} agentId=${agentId} />`;
  const waiting = shown.filter((approval) => approval.status === "waiting");
  const picked = waiting.filter((approval) => chosen.has(approval.id));
  return html`${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    <${DecideMany}
      waiting=${waiting} picked=${picked} onPick=${setChosen} onDecided=${note} onRefused=${say}
    />
    <ul class="cards">
      ${shown.map(
        (approval) => html`<li key=${approval.id} class="pickable">
          <input
            type="checkbox" aria-label=${`Select ${approval.tool_name}, ${approval.id}`}
            disabled=${approval.status !== "waiting"} checked=${picked.includes(approval)}
            onChange=${() => setChosen(toggled(chosen, approval.id))}
          />
          <div>
            ${refused[approval.id] && html`<p class="failure" role="alert">${refused[approval.id]}</p>`}
            <${ApprovalCard} approval=${approval} onDecided=${note} />
          </div>
        </li>`,
      )}
    </ul>
    <${Pager} ...${list} of="waiting approvals" />`;
}

/** @param {{agentId: string}} props */
function NothingWaits({ agentId }) {
  return html`<${Empty} title=${agentId ? "Nothing of this agent waits for a person" : "Nothing waits for a person"}>
    <p>
      A call waits here when its tool was made with <code>default_requires_approval</code>, or when the agent has a rule
      of type <code>requires_approval</code> for it. This page shows it at once.
    </p>
    <p><a href=${href("/approvals", { agent: agentId, show: "decided" })}>Show earlier answers</a></p>
    ${agentId && html`<p><a href="#/approvals">Show those of all agents</a></p>`}
  <//>`;
}

/**
 * The waiting calls and those that were decided here, in the order of their requests.
 * @param {Approval[]} rows
 * @param {Record<string, Approval>} decided
 */
function together(rows, decided) {
  const fresh = rows.map((row) => decided[row.id] ?? row);
  const gone = Object.values(decided).filter((approval) => !rows.some((row) => row.id === approval.id));
  const order = (/** @type {Approval} */ approval) => `${approval.asked_at} ${approval.run_id}`;
  return [...fresh, ...gone].sort((one, other) => order(one).localeCompare(order(other)));
}

/** @param {ReadonlySet<string>} set @param {string} id @returns {ReadonlySet<string>} */
function toggled(set, id) {
  const next = new Set(set);
  if (!next.delete(id)) next.add(id);
  return next;
}

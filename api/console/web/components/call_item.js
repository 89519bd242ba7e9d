// A tool call with its arguments and its result, and its approval request if it waits.

import { html } from "../html.js";
import { openOrDecided } from "../lib/decisions.js";
import { usePolled } from "../lib/polling.js";
import { ApprovalCard } from "./approval.js";
import { Failure } from "./basics.js";
import { JsonView } from "./json_view.js";

/**
 * @param {{item: import("../lib/frames.js").Item, agentId?: string, runId: string | null, isParked: boolean,
 *   isOver: boolean, onDecide?: (decided: any) => void}} props
 */
export function CallItem({ item, agentId, runId, isParked, isOver, onDecide }) {
  const call = item.call;
  if (call === undefined) return null;
  const hasResult = call.result !== undefined;
  const waits = isParked && call.needsApproval && !hasResult && !call.decision;
  return html`
    <details class="folded call">
      <summary>
        <span class="call-name">${call.name || "tool"}</span>${" "}
        <${CallStatus} result=${hasResult ? call.status : null} waits=${waits} isOver=${isOver} />${" "}
        <span class="call-brief">${brief(call.arguments)}</span>
      </summary>
      <p class="part-name">Arguments</p>
      <${JsonView} value=${call.arguments} label="Arguments" open=${true} />
      ${hasResult && html`<p class="part-name">Result</p><${JsonView} value=${call.result} label="Result" open=${true} />`}
      <${Printed} lines=${call.stdout ?? []} name="Standard output" />
      <${Printed} lines=${call.stderr ?? []} name="Standard error" />
    </details>
    ${call.decision && html`<${Decision} decision=${call.decision} />`}
    ${waits && onDecide && agentId && runId && html`<${WaitingCall} callId=${call.id} agentId=${agentId} runId=${runId} onDecide=${onDecide} />`}
  `;
}

/** @type {Record<string, string>} */
const DECISIONS = {
  approve: "Approved",
  deny: "Denied",
  tool_return: "Answered with a result",
  cancelled: "Not decided: the run was cancelled",
  expired: "Not decided in time",
};

/** @param {{decision: Record<string, any>}} props */
function Decision({ decision: { decision, reason, decided_by: by, edited, edited_arguments: changed } }) {
  return html`<p class="note">
      ${DECISIONS[decision]}${edited && " with other arguments"}${by && ` by ${by}`}${reason && `: ${reason}`}
    </p>
    ${changed && html`<${JsonView} value=${changed} label="Arguments as approved" />`}`;
}

/** @param {{lines: string[], name: string}} props */
function Printed({ lines, name }) {
  if (lines.length === 0) return null;
  return html`<p class="part-name">${name}</p><${JsonView} value=${lines.join("\n")} label=${name} />`;
}

/** @param {{result: string | null | undefined, waits: boolean, isOver: boolean}} props `result`: null before it arrives */
function CallStatus({ result, waits, isOver }) {
  if (result !== null) return html`<span class=${`status status-${result === "success" ? "good" : "bad"}`}>${result}</span>`;
  if (waits) return html`<span class="status status-asks">needs approval</span>`;
  if (isOver) return html`<span class="status status-ended">no result</span>`;
  return html`<span class="status status-works">no result yet</span>`;
}

/** @param {{callId: string, agentId: string, runId: string, onDecide: (decided: any) => void}} props */
function WaitingCall({ callId, agentId, runId, onDecide }) {
  const { data, error, reload } = usePolled(
    (signal) => openOrDecided(callId, runId, agentId, signal),
    { agentId, concerns: (change) => change.run_id === runId },
    [callId, runId, agentId],
  );
  const found = data.value;
  if (found === undefined) return html`<${Failure} error=${error.value} retry=${reload} />`;
  if (found === null) return html`<p class="note">This call has been decided.</p>`;
  if ("decision" in found) return html`<${Decision} decision=${found.decision} />`;
  return html`<${ApprovalCard} approval=${found.open} onDecided=${onDecide} />`;
}

/** @param {string} text */
function brief(text) {
  return text.length > 120 ? `${text.slice(0, 120)}…` : text;
}

// A tool's call with its arguments and its result, and the question whether it may run.

import { html, useEffect } from "../html.js";
import { request } from "../lib/api.js";
import { usePolled } from "../lib/polling.js";
import { ApprovalCard } from "./approval.js";
import { Failure } from "./basics.js";
import { JsonView } from "./json_view.js";

/** Somebody else may decide while the page is open. */
const ASK_AGAIN_MS = 2000;

/**
 * @param {{item: import("../lib/frames.js").Item, agentId?: string, runId: string | null, isParked: boolean,
 *   isOver: boolean, onDecide?: (decided: any) => void}} props
 */
export function CallItem({ item, agentId, runId, isParked, isOver, onDecide }) {
  const call = item.call;
  if (call === undefined) return null;
  const hasResult = call.result !== undefined;
  const waits = isParked && call.needsApproval && !hasResult;
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
    ${waits && onDecide && html`<${WaitingCall} callId=${call.id} agentId=${agentId} runId=${runId} onDecide=${onDecide} />`}
  `;
}

/** @param {{lines: string[], name: string}} props */
function Printed({ lines, name }) {
  if (lines.length === 0) return null;
  return html`<p class="part-name">${name}</p><${JsonView} value=${lines.join("\n")} label=${name} />`;
}

/** @param {{result: string | null | undefined, waits: boolean, isOver: boolean}} props `result`: null before there is one */
function CallStatus({ result, waits, isOver }) {
  if (result !== null) return html`<span class=${`status status-${result === "success" ? "good" : "bad"}`}>${result}</span>`;
  if (waits) return html`<span class="status status-asks">needs approval</span>`;
  if (isOver) return html`<span class="status status-ended">no result</span>`;
  return html`<span class="status status-works">no result yet</span>`;
}

/** @param {{callId: string, agentId?: string, runId: string | null, onDecide: (decided: any) => void}} props */
function WaitingCall({ callId, agentId, runId, onDecide }) {
  const { data, error } = usePolled(
    (signal) => request("GET", "/v1/approvals", { query: { agent_id: agentId, limit: 1000, order: "desc" }, signal }),
    ASK_AGAIN_MS,
    [callId, agentId],
  );
  const waiting = data.value?.find((/** @type {any} */ one) => one.tool_call_id === callId && one.run_id === runId);
  const isDecided = data.value !== undefined && waiting === undefined;
  useEffect(() => {
    if (isDecided) onDecide(null);
  }, [isDecided]);
  if (waiting !== undefined) return html`<${ApprovalCard} approval=${waiting} onDecided=${onDecide} />`;
  if (isDecided) return html`<p class="note">This call has been decided.</p>`;
  return html`<${Failure} error=${error.value} />`;
}

/** @param {string} text */
function brief(text) {
  return text.length > 120 ? `${text.slice(0, 120)}…` : text;
}

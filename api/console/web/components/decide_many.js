// One decision for many calls: a person ticks the calls, the page decides one after the other, and each shows its refusal.

import { html, useState } from "../html.js";
import { decideAll } from "../lib/approvals.js";
import { submitted } from "./arguments_editor.js";
import { Dialog } from "./dialog.js";

/** @typedef {import("../lib/approvals.js").Approval} Approval */
/** @typedef {import("../lib/approvals.js").Decision} Decision */

/**
 * @param {{waiting: Approval[], picked: Approval[], onPick: (ids: ReadonlySet<string>) => void,
 *   onDecided: (approval: Approval) => void, onRefused: (id: string, text: string) => void}} props
 */
export function DecideMany({ waiting, picked, onPick, onDecided, onRefused }) {
  const [asking, setAsking] = useState(/** @type {"approve" | "deny" | null} */ (null));
  const [outcome, setOutcome] = useState("");
  const give = async (/** @type {Decision} */ decision) => {
    setAsking(null);
    const counts = { decided: 0, refused: 0 };
    const say = () => setOutcome(`${counts.decided} of ${picked.length} decided, ${counts.refused} refused`);
    say();
    await decideAll(picked, decision, (approval, decided, error) => {
      const why = error?.message ?? decided?.conflict ?? "";
      counts[why ? "refused" : "decided"] += 1;
      onRefused(approval.id, why && `Not decided here: ${why}`);
      if (decided) onDecided(decided.approval);
      say();
    });
    onPick(new Set());
  };
  const all = waiting.length > 0 && picked.length === waiting.length;
  return html`<div class="toolbar" role="group" aria-label="Decide many at once">
    <label class="check">
      <input
        type="checkbox" checked=${all} disabled=${waiting.length === 0}
        onChange=${() => onPick(new Set(all ? [] : waiting.map((approval) => approval.id)))}
      />
      Select all ${waiting.length} on this page
    </label>
    <button class="main-button" disabled=${picked.length === 0} onClick=${() => setAsking("approve")}>
      Approve ${picked.length} selected
    </button>
    <button disabled=${picked.length === 0} onClick=${() => setAsking("deny")}>Deny ${picked.length} selected</button>
    <span role="status">${outcome}</span>
    ${asking && html`<${Sure} kind=${asking} picked=${picked} give=${give} onClose=${() => setAsking(null)} />`}
  </div>`;
}

/**
 * @param {{kind: "approve" | "deny", picked: Approval[], give: (decision: Decision) => void,
 *   onClose: () => void}} props
 */
function Sure({ kind, picked, give, onClose }) {
  const [reason, setReason] = useState("");
  const told = reason.trim() === "" ? {} : { reason: reason.trim() };
  /** @type {Decision} */
  const decision = kind === "approve" ? { decision: kind } : { decision: kind, ...told };
  const title = `${kind === "approve" ? "Approve" : "Deny"} ${picked.length} calls`;
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submitted(() => give(decision))}>
      <ul class="counts">
        ${countsOf(picked).map(
          ([name, count]) => html`<li>${count} ${count === 1 ? "call" : "calls"} of <code>${name}</code></li>`,
        )}
      </ul>
      ${kind === "deny" &&
      html`<label>
        Reason (the model reads it)
        <textarea
          rows="3" maxlength="10000" value=${reason}
          onInput=${(/** @type {any} */ event) => setReason(event.currentTarget.value)}
        />
      </label>`}
      <div class="buttons">
        <button type="submit" class=${kind === "approve" ? "main-button" : "danger"}>${title}</button>
        <button type="button" onClick=${onClose}>Back</button>
      </div>
    </form>
  <//>`;
}

/** The number of calls of each tool. @param {Approval[]} approvals @returns {[string, number][]} */
function countsOf(approvals) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const approval of approvals) counts.set(approval.tool_name, (counts.get(approval.tool_name) ?? 0) + 1);
  return [...counts].sort(([one], [other]) => one.localeCompare(other));
}

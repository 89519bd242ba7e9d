// One tool call that waits for a person: its arguments, its agent, its expiry, and the ways to decide it.

import { html, useEffect, useRef, useState } from "../html.js";
import { decide, onExpiry, outcomeOf, readableArguments } from "../lib/approvals.js";
import { href } from "../lib/routing.js";
import { ArgumentsEditor, submitted } from "./arguments_editor.js";
import { AgentName, Failure, Id, Time } from "./basics.js";
import { Countdown } from "./countdown.js";
import { Diff } from "./diff.js";
import { JsonView } from "./json_view.js";

/** @typedef {import("../lib/approvals.js").Approval} Approval */
/** @typedef {import("../lib/approvals.js").Decision} Decision */
/** @typedef {import("../lib/approvals.js").Decided} Decided */
/** @typedef {"look" | "edit" | "deny" | "return"} Mode */

const KINDS = { waiting: "asks", approved: "good", denied: "ended", returned: "good" };

/**
 * `onDecided` gets the server's approval after the decision, with the continuation `run` if there is one, also if another
 * person has decided.
 * @param {{approval: Approval, onDecided?: (approval: Approval) => void}} props
 */
export function ApprovalCard({ approval, onDecided }) {
  // A page shows the decision at once, even before it has loaded the approval again.
  const [given, setGiven] = useState(/** @type {Decided | null} */ (null));
  const shown = approval.status === "waiting" && given !== null ? given.approval : approval;
  const note = (/** @type {Decided} */ decided) => {
    setGiven(decided);
    onDecided?.(decided.approval);
  };
  return html`<article class="approval panel" aria-labelledby=${`title-${shown.id}`}>
    <header>
      <h2 id=${`title-${shown.id}`}><code>${shown.tool_name}</code></h2>
      <span class=${`status status-${KINDS[shown.status]}`}>${shown.status}</span>
      ${shown.client_side && html`<span class="quiet-text">run by the client</span>`}
    </header>
    <${Asked} approval=${shown} />
    <${Arguments} approval=${shown} />
    ${given?.conflict && html`<p class="failure" role="alert">Not decided here: ${given.conflict}</p>`}
    ${shown.status === "waiting"
      ? html`<${Choosing} approval=${shown} onGiven=${note} />`
      : html`<${Outcome} approval=${shown} isNew=${given !== null} />`}
  </article>`;
}

/** @param {{approval: Approval}} props */
function Asked({ approval }) {
  const { agent_id: agentId, run_id: runId, conversation_id: conversationId } = approval;
  const talk = href(`/agents/${agentId}`, { show: "talk", conversation: conversationId });
  return html`<dl class="facts">
    <div><dt>Asked</dt><dd><${Time} at=${approval.asked_at} /></dd></div>
    <div><dt>Agent</dt><dd><${AgentName} id=${agentId} /></dd></div>
    <div><dt>Run</dt><dd><${Id} id=${runId} href=${href(`/runs/${runId}`)} /></dd></div>
    ${conversationId && html`<div><dt>Conversation</dt><dd><${Id} id=${conversationId} href=${talk} /></dd></div>`}
    ${approval.status === "waiting" &&
    html`<div>
      <dt>Expires</dt>
      <dd>
        ${approval.expires_at ? html`<${Countdown} until=${approval.expires_at} />, ${onExpiry(approval)}` : "never"}
      </dd>
    </div>`}
  </dl>`;
}

/** @param {{approval: Approval}} props */
function Arguments({ approval }) {
  const edited = approval.decision?.arguments;
  if (!edited) return html`<${JsonView} value=${approval.arguments_object ?? approval.arguments} label="Arguments" />`;
  const [before, after] = [readableArguments(approval), JSON.stringify(edited, null, 2)];
  return html`<${Diff} before=${before} after=${after} label="How the arguments were changed" />`;
}

/**
 * The ways to decide, one of them open at a time.
 * @param {{approval: Approval, onGiven: (decided: Decided) => void}} props
 */
function Choosing({ approval, onGiven }) {
  const [mode, setMode] = useState(/** @type {Mode} */ ("look"));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const give = async (/** @type {Decision} */ decision) => {
    setBusy(true);
    setError(null);
    try {
      onGiven(await decide(approval, decision));
    } catch (refused) {
      setError(/** @type {Error} */ (refused));
    } finally {
      setBusy(false);
    }
  };
  const form = { approval, busy, give, onLeave: () => setMode("look") };
  return html`<div class="deciding">
    <${Failure} error=${error} />
    ${mode === "look" && html`<${Choices} ...${form} choose=${setMode} />`}
    ${mode === "edit" && html`<${Edit} ...${form} />`}
    ${mode === "deny" && html`<${Deny} ...${form} />`}
    ${mode === "return" && html`<${GiveResult} ...${form} />`}
  </div>`;
}

/** @typedef {{approval: Approval, busy: boolean, give: (decision: Decision) => void, onLeave: () => void}} Form */

/** @param {Form & {choose: (mode: Mode) => void}} props */
function Choices({ approval, busy, give, choose }) {
  const { tool_name: name, client_side: isClients } = approval;
  const approve = () => give({ decision: "approve" });
  /** @param {string} text @param {string} label @param {() => void} act @param {boolean} isMain */
  const button = (text, label, act, isMain = false) => html`<button
    type="button" class=${isMain ? "main-button" : ""} disabled=${busy} aria-label=${label} onClick=${act}
  >${text}</button>`;
  return html`<div class="buttons">
    ${!isClients && button("Approve", `Approve ${name}`, approve, true)}
    ${!isClients && button("Edit arguments", `Edit arguments of ${name}`, () => choose("edit"))}
    ${button("Deny", `Deny ${name}`, () => choose("deny"))}
    ${button("Give a result", `Give a result of ${name}`, () => choose("return"), isClients)}
  </div>`;
}

/** @param {Form} props */
function Edit({ approval, busy, give, onLeave }) {
  const approve = (/** @type {Record<string, any>} */ changed) => give({ decision: "approve", arguments: changed });
  return html`<${ArgumentsEditor} approval=${approval} busy=${busy} onApprove=${approve} onLeave=${onLeave} />`;
}

/** @param {Form} props */
function Deny({ approval, busy, give, onLeave }) {
  const [reason, setReason] = useState("");
  const deny = () => give(reason.trim() ? { decision: "deny", reason: reason.trim() } : { decision: "deny" });
  return html`<form class="decision-form" onSubmit=${submitted(deny)}>
    <${TextField}
      name=${`reason-${approval.id}`} label="Reason, told to the model" value=${reason} onValue=${setReason}
    />
    <div class="buttons">
      <button type="submit" class="danger" disabled=${busy}>Deny the call</button>
      <button type="button" onClick=${onLeave}>Back</button>
    </div>
  </form>`;
}

/** @param {Form} props */
function GiveResult({ approval, busy, give, onLeave }) {
  const [result, setResult] = useState("");
  const [failed, setFailed] = useState(false);
  const send = () => give({ decision: "tool_return", tool_return: result, status: failed ? "error" : "success" });
  return html`<form class="decision-form" onSubmit=${submitted(send)}>
    <${TextField} name=${`result-${approval.id}`} label="The tool's result" value=${result} onValue=${setResult} />
    <label class="check">
      <input
        type="checkbox" checked=${failed}
        onChange=${(/** @type {any} */ event) => setFailed(event.currentTarget.checked)}
      />
      The call failed
    </label>
    <div class="buttons">
      <button type="submit" class="main-button" disabled=${busy}>Send the result</button>
      <button type="button" onClick=${onLeave}>Back</button>
    </div>
  </form>`;
}

/** @param {{name: string, label: string, value: string, onValue: (value: string) => void}} props */
function TextField({ name, label, value, onValue }) {
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  return html`<label for=${name}>${label}</label>
    <textarea
      id=${name} ref=${field} rows="3" maxlength="10000" value=${value}
      onInput=${(/** @type {any} */ event) => onValue(event.currentTarget.value)}
    />`;
}

/**
 * The decision. If it was made here, it gets the focus, because the focused button is gone.
 * @param {{approval: Approval, isNew: boolean}} props
 */
function Outcome({ approval, isNew }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (isNew) place.current?.focus();
  }, [isNew]);
  const { reason, tool_return: result } = approval.decision ?? {};
  return html`<div class="outcome" role="status" tabindex="-1" ref=${place}>
    <p>
      ${outcomeOf(approval)}${approval.decided_at && html`, <${Time} at=${approval.decided_at} />`}${" "}
      ${approval.continued_by && html`<a href=${href(`/runs/${approval.continued_by}`)}>The continuation</a>`}
    </p>
    ${reason && html`<blockquote>${reason}</blockquote>`}
    ${result !== undefined && html`<${JsonView} value=${result} label="Result" />`}
  </div>`;
}

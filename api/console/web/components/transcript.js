// A run as a person reads it. The output of models and tools is always shown as text, never as markup.

import { Component, html, useState } from "../html.js";
import { number } from "../lib/format.js";
import { Time } from "./basics.js";
import { CallItem } from "./call_item.js";

/** @typedef {import("../lib/frames.js").Item} Item */

/** The items in the page at first; a button shows earlier ones. */
const AT_ONCE = 400;

/** @type {Partial<Record<import("../lib/frames.js").Kind, string>>} */
const SPEAKERS = { text: "Agent", input: "Injected", summary: "Summary of old messages" };

/**
 * @param {{transcript: import("../lib/frames.js").Transcript, agentId?: string,
 *   seenUpTo?: import("../lib/run_stream.js").Position | null, isOver?: boolean,
 *   onDecide?: (decided: any) => void}} props `onDecide`: waiting calls can be decided here, and it gets the outcome.
 *   `seenUpTo`: a line is drawn after it. `isOver`: the run has ended, whatever its log's last event: the log of a run that
 *   was cancelled while it waited for a person ends with the approval request
 */
export function Transcript({ transcript, agentId, seenUpTo = null, isOver = false, onDecide }) {
  const [count, setCount] = useState(AT_ONCE);
  const { items } = transcript;
  const hidden = Math.max(0, items.length - count);
  const isParked = transcript.stopReason === "requires_approval" && !isOver;
  const shown = items.slice(hidden);
  const isNew = (/** @type {Item} */ item) =>
    seenUpTo !== null && (item.leg > seenUpTo.leg || (item.leg === seenUpTo.leg && item.lastSeq > seenUpTo.seq));
  const firstNew = shown.find(isNew);
  return html`
    <div class="transcript">
      ${hidden > 0 &&
      html`<button type="button" onClick=${() => setCount(count + 2 * AT_ONCE)}>Show ${number(hidden)} earlier</button>`}
      <ol>
        ${shown.map(
          (item) => html`
            ${item === firstNew && html`<li key="seen" class="seen" data-seen=${seenUpTo?.seq}>You had read up to number ${seenUpTo?.seq}</li>`}
            <${ItemView}
              key=${item.key}
              item=${item}
              agentId=${agentId}
              runId=${transcript.runId}
              isParked=${isParked}
              isOver=${isOver}
              onDecide=${onDecide}
            />
          `,
        )}
      </ol>
    </div>
  `;
}

/**
 * @typedef {{item: Item, agentId?: string, runId: string | null, isParked: boolean, isOver: boolean,
 *   onDecide?: (decided: any) => void}} ItemProps
 * @extends {Component<ItemProps>}
 */
class ItemView extends Component {
  /** @param {ItemProps} next */
  shouldComponentUpdate(next) {
    const now = /** @type {ItemProps} */ (this.props);
    const isOfItsCall = next.isParked !== now.isParked || next.isOver !== now.isOver;
    return next.item !== now.item || (next.item.kind === "call" && isOfItsCall);
  }

  render() {
    const { item, agentId, runId, isParked, isOver, onDecide } = /** @type {ItemProps} */ (this.props);
    return html`
      <li class=${`item item-${item.kind}${item.isVoid ? " void" : ""}`} data-kind=${item.kind} data-seq=${item.seq}>
        ${item.isVoid && html`<p class="void-note">Void: the worker was lost before this was stored.</p>`}
        ${item.kind === "call"
          ? html`<${CallItem} item=${item} agentId=${agentId} runId=${runId} isParked=${isParked} isOver=${isOver} onDecide=${onDecide} />`
          : content(item)}
      </li>
    `;
  }
}

/** @param {Item} item */
function content(item) {
  switch (item.kind) {
    case "reasoning":
      return html`<details class="folded" open><summary>Reasoning</summary><div class="said">${item.text}</div></details>`;
    case "text":
    case "input":
    case "summary":
      return html`
        <p class="speaker">${SPEAKERS[item.kind]} <span class="quiet-text"><${Time} at=${item.at} /></span></p>
        <div class="said">${item.text}</div>
      `;
    case "error":
      return html`<div class="failure"><p><strong>${item.data?.error_type}</strong> ${item.text}</p>
        ${item.data?.detail && html`<pre tabindex="0" aria-label="Detail">${item.data.detail}</pre>`}
        ${item.data?.hint && html`<p>${item.data.hint}</p>`}</div>`;
    default:
      return html`<p class="note">${note(item)} <span class="quiet-text">number ${item.seq}</span></p>`;
  }
}

/** @param {Item} item */
function note(item) {
  const data = item.data ?? {};
  switch (item.kind) {
    case "gap":
      return `Events ${data.first_missing} to ${data.last_missing} are gone: no store has them any more.`;
    case "restarted":
      return `A worker was lost. Another one begins the step again (attempt ${data.attempt}).`;
    case "continued":
      return data.voided > 0
        ? "The run was handed over. What is struck through had not been stored; the run goes on before it."
        : "The run was handed over. Another worker goes on; nothing of what was shown is void.";
    case "leg":
      return `The approval was given or denied. The run goes on as ${item.text}.`;
    case "compaction":
      return `The window is full (${number(data.context_token_estimate)} of ${number(data.context_window)} tokens): a summary takes the place of old messages.`;
    default:
      return `The run is ${item.text}${data.cause ? ` (${data.cause})` : ""}.`;
  }
}

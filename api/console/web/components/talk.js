// A talk with an agent: the past messages, the present answer, and a box for the next message.

import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { request } from "../lib/api.js";
import { shortId } from "../lib/format.js";
import { href } from "../lib/routing.js";
import { useTalk } from "../lib/talk.js";
import { submitted } from "./arguments_editor.js";
import { Empty, Failure, Time } from "./basics.js";
import { Transcript } from "./transcript.js";

/** @typedef {import("../lib/talk_entries.js").Entry} Entry */
/** @typedef {ReturnType<typeof useTalk>} TalkState */

/** A box closer to its end than one line counts as at its end. */
const END_PX = 16;
const QUEUED = "The run has not begun yet.";

/** @param {{agentId: string, conversationId: string | null}} props */
export function Talk({ agentId, conversationId }) {
  const talk = useTalk(agentId, conversationId);
  const { box, toEnd } = useStickyEnd();
  if (!talk.isLoaded) {
    if (talk.error) return html`<${Failure} error=${talk.error} retry=${talk.reload} />`;
    return html`<p role="status">The history is being fetched.</p>`;
  }
  return html`<section class="talk" aria-label="Talk">
    <div class="talk-box" ref=${box} tabindex="0" role="region" aria-label="What was said">
      <${Older} older=${talk.older} />
      ${talk.entries.length === 0 &&
      html`<${Empty} title="Nothing has been said yet"><p>Write a message below: the answer streams in here.</p><//>`}
      <ol class="talk-entries">
        ${talk.entries.map(
          (entry) => html`<${EntryView} key=${entry.key} entry=${entry} agentId=${agentId} talk=${talk} />`,
        )}
      </ol>
    </div>
    <${Announced} entries=${talk.entries} />
    ${talk.lost && html`<p class="note" role="status">${talk.lost.message} Trying again.</p>`}
    <${Failure} error=${talk.error} retry=${talk.reload} />
    <${SayBox} talk=${talk} onSaid=${toEnd} />
  </section>`;
}

/**
 * Announces to screen readers that the agent works, and its answer once it is whole, not word by word. Entries from before
 * the page was opened are not announced.
 * @param {{entries: Entry[]}} props
 */
function Announced({ entries }) {
  const hasWorked = useRef(false);
  const last = entries.at(-1);
  const turn = last?.kind === "live" ? last.turn : undefined;
  const isAtWork = turn !== undefined && !turn.transcript.hasEnded;
  hasWorked.current = hasWorked.current || isAtWork;
  const words = isAtWork ? "The agent answers." : turn && hasWorked.current ? endWords(turn) : "";
  return html`<p class="for-readers" role="status">${words}</p>`;
}

/** @param {import("../lib/conversation.js").Turn} turn */
function endWords({ isWaiting, transcript }) {
  if (isWaiting) return "The agent waits for a person to decide.";
  const text = transcript.items.findLast((item) => item.kind === "text" && !item.isVoid)?.text;
  return text ? `The agent has answered: ${text}` : "The agent has ended without an answer.";
}

/** @param {{older: TalkState["older"]}} props */
function Older({ older }) {
  const { show, isLoading, error } = older;
  if (show === null) return null;
  return html`<${Failure} error=${error} />
    <button type="button" onClick=${show}>
      ${isLoading ? "Fetching earlier messages…" : "Show earlier messages"}
    </button>`;
}

/**
 * @typedef {{entry: Entry, agentId: string, talk: TalkState}} EntryProps
 * @extends {Component<EntryProps>}
 */
class EntryView extends Component {
  /** @param {EntryProps} next */
  shouldComponentUpdate(next) {
    /** @type {Record<string, any>} */
    const before = /** @type {EntryProps} */ (this.props).entry;
    return Object.entries(next.entry).some(([name, value]) => before[name] !== value);
  }

  render() {
    const { entry, agentId, talk } = /** @type {EntryProps} */ (this.props);
    if (entry.kind === "said") return html`<${Said} entry=${entry} talk=${talk} />`;
    if (entry.kind === "queued") return html`<${Queued} runId=${entry.runId} />`;
    if (entry.kind === "live") return html`<${Answering} turn=${entry.turn} agentId=${agentId} />`;
    return html`<li class="answer" data-run=${entry.runId}>
      <${RunLink} runId=${entry.runId} />
      <${Transcript} transcript=${entry.transcript} agentId=${agentId} />
      <${End} reason=${entry.transcript.stopReason} />
    </li>`;
  }
}

/** @param {{runId: string}} props */
function Queued({ runId }) {
  return html`<li class="answer" data-run=${runId}>
    <${RunLink} runId=${runId} />
    <p class="note" role="status">${QUEUED}</p>
  </li>`;
}

/** @param {{entry: Extract<Entry, {kind: "said"}>, talk: TalkState}} props */
function Said({ entry, talk }) {
  const sent = entry.sent;
  return html`<li class="said-here">
    <p class="speaker">
      User <span class="quiet-text">${entry.at ? html`<${Time} at=${entry.at} />` : stateOf(sent)}</span>
    </p>
    <div class="said">${entry.text}</div>
    ${sent?.error &&
    html`<div class="failure" role="alert">
      <p>It was not taken: ${sent.error}</p>
      <div class="buttons">
        <button type="button" onClick=${() => talk.sendAgain(sent)}>Send again</button>
        <button type="button" onClick=${() => talk.discard(sent)}>Discard</button>
      </div>
    </div>`}
  </li>`;
}

/** @param {import("../lib/talk_entries.js").Sent | undefined} sent */
function stateOf(sent) {
  if (sent?.error) return "not sent";
  return sent?.runId ? "waits for its turn" : "on its way";
}

/** @param {{turn: import("../lib/conversation.js").Turn, agentId: string}} props */
function Answering({ turn: { transcript, runIds, isWaiting }, agentId }) {
  const isOver = transcript.hasEnded && !isWaiting;
  return html`<li class="answer" data-run=${runIds[0]} data-at-work=${!transcript.hasEnded}>
    <${RunLink} runId=${transcript.runId} />
    <${Transcript} transcript=${transcript} agentId=${agentId} isOver=${isOver} onDecide=${() => undefined} />
    ${transcript.hasEnded
      ? html`<${End} reason=${transcript.stopReason} />`
      : html`<p class="note">The agent is at work.</p>`}
  </li>`;
}

/** @param {{reason: string | null}} props */
function End({ reason }) {
  if (reason === null || reason === "end_turn") return null;
  if (reason === "requires_approval") return html`<p class="note">It waits for a person to decide.</p>`;
  return html`<p class="note">Stopped: ${reason.replaceAll("_", " ")}.</p>`;
}

/** @param {{runId: string | null}} props */
function RunLink({ runId }) {
  if (!runId) return null;
  return html`<a class="run-link quiet-text" href=${href(`/runs/${runId}`)}>Run ${shortId(runId).slice(4)}</a>`;
}

/** @param {{talk: TalkState, onSaid: () => void}} props */
function SayBox({ talk, onSaid }) {
  const [text, setText] = useState("");
  const [ifBusy, setIfBusy] = useState("enqueue");
  const busy = talk.active.length > 0;
  const say = () => {
    if (!text.trim()) return;
    talk.send(text, ifBusy);
    setText("");
    onSaid();
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  };
  return html`<form class="say" onSubmit=${submitted(say)}>
    <label for="say">Message <span class="quiet-text">Enter sends, Shift and Enter begins a line</span></label>
    <textarea
      id="say" rows="3" value=${text} disabled=${talk.waitsForPerson} onKeyDown=${onKeyDown}
      placeholder=${talk.waitsForPerson ? "Decide the call above first: the agent waits for it." : ""}
      onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}
    />
    <div class="buttons">
      <button type="submit" class="main-button" disabled=${talk.waitsForPerson || !text.trim()}>Send</button>
      ${busy && html`<${IfBusy} value=${ifBusy} onValue=${setIfBusy} />`}
      ${busy && html`<${Stop} runIds=${talk.active} />`}
    </div>
  </form>`;
}

/** @param {{value: string, onValue: (value: string) => void}} props */
function IfBusy({ value, onValue }) {
  return html`<label class="inline">
    While it answers
    <select value=${value} onChange=${(/** @type {any} */ event) => onValue(event.currentTarget.value)}>
      <option value="enqueue">wait for its end</option>
      <option value="inject">tell it at its next step</option>
      <option value="interrupt">stop it, then ask</option>
    </select>
  </label>`;
}

/** @param {{runIds: string[]}} props */
function Stop({ runIds }) {
  const [said, setSaid] = useState("");
  const stop = async () => {
    setSaid("asked to stop");
    try {
      const body = { mode: "interrupt", reason: "stopped in the console" };
      const receipts = await Promise.all(runIds.map((id) => request("POST", `/v1/runs/${id}/cancel`, { body })));
      setSaid(receipts.map((receipt) => receipt.status).join(", "));
    } catch (thrown) {
      setSaid(thrown instanceof Error ? thrown.message : String(thrown));
    }
  };
  return html`<button type="button" class="danger" onClick=${stop}>Stop</button><span role="status">${said}</span>`;
}

/**
 * A box that stays at its end while it grows, or gets less room, unless its reader has scrolled away from there. `toEnd`
 * scrolls it back.
 */
function useStickyEnd() {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const isAtEnd = useRef(true);
  const before = useRef({ element: /** @type {HTMLDivElement | null} */ (null), top: 0, height: 0 });
  const look = () => {
    const element = box.current;
    if (element === null) return;
    const { scrollTop: top, scrollHeight: height, clientHeight } = element;
    const last = before.current;
    // A growing content moves the end away from the box, and a shrinking one moves the box: the reader did neither.
    const wasScrolledUp = element === last.element && top < last.top && height >= last.height;
    if (height - top - clientHeight < END_PX) isAtEnd.current = true;
    else if (wasScrolledUp) isAtEnd.current = false;
    before.current = { element, top, height };
  };
  const follow = () => {
    // A browser reports scrolling with the next drawn frame, and the box may have grown since.
    look();
    if (box.current && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const changed = new ResizeObserver(follow);
    changed.observe(element);
    for (const inner of element.children) changed.observe(inner);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      changed.disconnect();
      element.removeEventListener("scroll", look);
    };
  });
  useLayoutEffect(follow);
  const toEnd = () => {
    look();
    isAtEnd.current = true;
    follow();
  };
  return { box, toEnd };
}

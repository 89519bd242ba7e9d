// The entries of a talk with an agent, each once: from the history, from the conversation's stream, from the queued runs,
// and from the messages on their way.

import { addFrame, asText, emptyTranscript } from "./frames.js";

/** @typedef {import("./conversation.js").Turn} Turn */
/**
 * @typedef {{id: string, status: string, stop_reason: string | null, metadata: any}} Run as the API lists it
 *
 * A message that was typed here. `runId`, the run that answers it, is null until the server has sent it.
 * @typedef {{otid: string, text: string, ifBusy: string, runId: string | null, error: string | null}} Sent
 *
 * @typedef {{kind: "said", key: string, text: string, at: string | null, sent?: Sent}
 *   | {kind: "past", key: string, runId: string | null, transcript: import("./frames.js").Transcript}
 *   | {kind: "live", key: string, turn: Turn}
 *   | {kind: "queued", key: string, runId: string}} Entry
 */

/**
 * The history's entries of runs that are not streamed.
 * @param {any[]} messages the history as the API lists it, oldest first
 * @param {Run[]} ended runs whose ends are known
 * @param {ReadonlySet<string>} streamed
 * @returns {Entry[]}
 */
export function pastEntries(messages, ended, streamed) {
  const runOf = new Map(ended.map((run) => [run.id, run]));
  const past = groupsOf(messages).filter((group) => !streamed.has(group[0].run_id));
  return past.flatMap((group) => pastOf(group, runOf.get(group[0].run_id)));
}

/**
 * The turns that are shown from the stream; the history shows turns whose logs are incomplete.
 * @param {Turn[]} turns
 * @param {any[]} messages
 */
export function shownTurns(turns, messages) {
  return turns.filter(({ transcript, runIds }) => {
    if (!transcript.items.some((item) => item.kind === "gap")) return true;
    return !messages.some((one) => runIds.includes(one.run_id) && one.message_type !== "user_message");
  });
}

/**
 * @param {Turn[]} turns from the stream
 * @param {Run[]} queued oldest first
 * @param {Sent[]} sent the messages that neither the history nor a turn has
 * @returns {Entry[]}
 */
export function presentEntries(turns, queued, sent) {
  const begun = new Set(turns.flatMap((turn) => turn.runIds));
  const waiting = queued.filter((run) => !begun.has(run.id));
  const queuedIds = new Set(waiting.map((run) => run.id));
  return [
    ...turns.flatMap(turnOf),
    ...waiting.flatMap((run) => queuedOf(run, sent)),
    ...sent.filter((one) => !queuedIds.has(one.runId ?? "")).map(sentEntry),
  ];
}

/** The messages, grouped by run. @param {any[]} messages @returns {any[][]} */
function groupsOf(messages) {
  /** @type {any[][]} */
  const groups = [];
  for (const message of messages) {
    const last = groups.at(-1);
    if (last !== undefined && last[0].run_id === message.run_id) last.push(message);
    else groups.push([message]);
  }
  return groups;
}

/** @param {any[]} group @param {Run | undefined} run whose messages they are @returns {Entry[]} */
function pastOf(group, run) {
  /** @type {Entry[]} */
  const entries = [];
  let transcript = emptyTranscript();
  const close = () => {
    const first = transcript.items[0];
    const key = first?.key ?? `end:${transcript.runId}`;
    if (first || transcript.stopReason) entries.push({ kind: "past", key: `past:${key}`, runId: transcript.runId, transcript });
    transcript = emptyTranscript();
  };
  group.forEach((message, index) => {
    if (message.message_type === "user_message") {
      close();
      entries.push(saidOf(message, message.date));
    } else if (message.message_type !== "system_message") {
      transcript = addFrame(transcript, { seq: index + 1, cursor: "", event: "message", data: message });
    }
  });
  for (const data of endOf(run)) {
    transcript = addFrame(transcript, { seq: group.length + 1, cursor: "", event: "message", data });
  }
  close();
  return entries;
}

/**
 * The frames of a run's end, which the history lacks: it has only messages.
 * @param {Run | undefined} run
 * @returns {any[]}
 */
function endOf(run) {
  // A regular end is not shown, and a run that waited for a person was decided.
  if (run === undefined || run.stop_reason === null) return [];
  if (run.stop_reason === "end_turn" || run.stop_reason === "requires_approval") return [];
  const failure = run.metadata?.error;
  const stop = { message_type: "stop_reason", run_id: run.id, stop_reason: run.stop_reason };
  return failure ? [failure, stop] : [stop];
}

/** @param {{id: string, otid: string | null, content: any}} message @param {string | null} at @returns {Entry} */
function saidOf(message, at) {
  return { kind: "said", key: `said:${message.otid ?? message.id}`, text: asText(message.content), at };
}

/** @param {Turn} turn @returns {Entry[]} */
function turnOf(turn) {
  const asked = turn.asked.filter((one) => one.role === "user").map((one) => saidOf(one, turn.at));
  const { hasEnded, items } = turn.transcript;
  // For example a compaction of a history that had nothing to compact.
  if (hasEnded && items.length === 0 && asked.length === 0) return [];
  return [...asked, { kind: "live", key: `live:${turn.number}`, turn }];
}

/** @param {Run} run @param {Sent[]} sent @returns {Entry[]} */
function queuedOf(run, sent) {
  /** @type {Entry} */
  const entry = { kind: "queued", key: `queued:${run.id}`, runId: run.id };
  const own = sent.filter((one) => one.runId === run.id).map(sentEntry);
  const words = run.metadata?.first_words;
  if (own.length > 0) return [...own, entry];
  return words ? [{ kind: "said", key: `said:${run.id}`, text: words, at: null }, entry] : [entry];
}

/** @param {Sent} one @returns {Entry} */
function sentEntry(one) {
  // The key equals that in the turn, so the entry stays when the stream has it.
  return { kind: "said", key: `said:${one.otid}`, text: one.text, at: null, sent: one };
}

// What a talk with an agent shows, each thing once: what is in the history, and the runs that are followed live. A run
// that is followed replays its log from the start, so of its messages in the history only what it was asked is shown.

import { isOpen, leftNothing } from "./followed_runs.js";
import { addFrame, asText, emptyTranscript } from "./frames.js";

/** @typedef {import("./followed_runs.js").Chain} Chain */
/** @typedef {import("./followed_runs.js").Run} Run */
/**
 * A message that was typed here. `runId` is null until the server has said which run answers it.
 * @typedef {{otid: string, text: string, ifBusy: string, runId: string | null, error: string | null}} Sent
 *
 * @typedef {{kind: "said", key: string, text: string, at: string | null, sent?: Sent}
 *   | {kind: "past", key: string, runId: string | null, transcript: import("./frames.js").Transcript}
 *   | {kind: "live", key: string, chain: Chain}} Entry
 */

/**
 * @param {any[]} messages the history as the API lists it, oldest first
 * @param {{chains: Chain[], runs: Run[], sent: Sent[], shown: ReadonlySet<string>}} talk `chains`: what is followed, oldest
 *   first; `runs`: those whose ends are known; `shown`: ids and otids of messages that a followed run shows itself, as
 *   those injected into it
 * @returns {Entry[]}
 */
export function talkEntries(messages, { chains, runs, sent, shown }) {
  const kept = new Set(messages.map((message) => message.otid));
  const open = sent.filter((one) => !kept.has(one.otid) && !shown.has(one.otid));
  /** @type {Entry[]} */
  const entries = [];
  const runOf = new Map(runs.map((run) => [run.id, run]));
  const chainOf = new Map(chains.flatMap((chain) => chain.map((run) => [run.id, chain])));
  /** @type {Set<Chain>} */
  const placed = new Set();
  const placeOf = new Map(runs.toReversed().map((run, place) => [run.id, place]));
  const isBefore = (/** @type {Chain} */ chain, /** @type {string} */ runId) =>
    (placeOf.get(chain[0]?.id ?? "") ?? Infinity) < (placeOf.get(runId) ?? -1);
  // What failed without a message of its own has no place in the history: it stands before the run that came next.
  const traceless = chains.filter((chain) => !chain.some(isOpen) && leftNothing(chain, messages));
  for (const group of groupsOf(messages)) {
    for (const lost of traceless.filter((one) => !placed.has(one) && isBefore(one, group[0].run_id))) {
      entries.push(...sentTo(open, lost), liveOf(lost));
      placed.add(lost);
    }
    const chain = chainOf.get(group[0].run_id);
    if (chain === undefined) {
      entries.push(...pastOf(group, runOf.get(group[0].run_id)));
      continue;
    }
    const asked = group.filter((message) => message.message_type === "user_message" && !shown.has(message.id));
    entries.push(...asked.map(saidOf));
    // What it was asked is in the history, so what is still on its way to it is injected.
    if (!placed.has(chain)) entries.push(liveOf(chain), ...sentTo(open, chain));
    placed.add(chain);
  }
  for (const chain of chains.filter((one) => !placed.has(one))) entries.push(...sentTo(open, chain), liveOf(chain));
  const unplaced = open.filter((one) => one.runId === null || !chainOf.has(one.runId));
  return [...entries, ...unplaced.map(sentEntry)];
}

/** The messages of one run after the other. @param {any[]} messages @returns {any[][]} */
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
      entries.push(saidOf(message));
    } else if (message.message_type !== "system_message") {
      transcript = addFrame(transcript, { seq: index + 1, event: "message", data: message });
    }
  });
  for (const frame of endOf(run)) transcript = addFrame(transcript, { seq: group.length + 1, event: "message", data: frame });
  close();
  return entries;
}

/**
 * How a run ended, as its stream said it: the history has messages alone.
 * @param {Run | undefined} run
 * @returns {any[]}
 */
function endOf(run) {
  // An end as it should be needs no word, and one that waited for a person was decided.
  if (run === undefined || run.stop_reason === null) return [];
  if (run.stop_reason === "end_turn" || run.stop_reason === "requires_approval") return [];
  const failure = run.metadata?.error;
  const stop = { message_type: "stop_reason", run_id: run.id, stop_reason: run.stop_reason };
  return failure ? [failure, stop] : [stop];
}

/** @param {any} message @returns {Entry} */
function saidOf(message) {
  return { kind: "said", key: `said:${message.otid ?? message.id}`, text: asText(message.content), at: message.date };
}

/** @param {Sent} one @returns {Entry} */
function sentEntry(one) {
  // The same key as in the history: the entry stays what it is when the history has it.
  return { kind: "said", key: `said:${one.otid}`, text: one.text, at: null, sent: one };
}

/** @param {Sent[]} open @param {Chain} chain */
function sentTo(open, chain) {
  return open.filter((one) => chain.some((run) => run.id === one.runId)).map(sentEntry);
}

/** @param {Chain} chain @returns {Entry} */
function liveOf(chain) {
  return { kind: "live", key: `live:${chain[0]?.id}`, chain };
}

// What a talk with an agent shows, each thing once: what is in the history, and the runs that are followed live. A run
// that is followed replays its log from the start, so of its messages in the history only what it was asked is shown.

import { addFrame, asText, emptyTranscript } from "./frames.js";

/**
 * A message that was typed here. `runId` is null until the server has said which run answers it.
 * @typedef {{otid: string, text: string, ifBusy: string, runId: string | null, error: string | null}} Sent
 *
 * @typedef {{kind: "said", key: string, text: string, at: string | null, sent?: Sent}
 *   | {kind: "past", key: string, runId: string | null, transcript: import("./frames.js").Transcript}
 *   | {kind: "live", key: string, runIds: Chain}} Entry
 *
 * @typedef {string[]} Chain a run that is followed, and those that go on with it after approvals
 */

/**
 * @param {any[]} messages the history as the API lists it, oldest first
 * @param {Chain[]} live what is followed, oldest first
 * @param {Sent[]} sent
 * @param {ReadonlySet<string>} shown ids and otids of messages that a followed run shows itself, as those injected into it
 * @returns {Entry[]}
 */
export function talkEntries(messages, live, sent, shown) {
  const kept = new Set(messages.map((message) => message.otid));
  const open = sent.filter((one) => !kept.has(one.otid) && !shown.has(one.otid));
  /** @type {Entry[]} */
  const entries = [];
  const chainOf = new Map(live.flatMap((chain) => chain.map((runId) => [runId, chain])));
  /** @type {Set<Chain>} */
  const placed = new Set();
  for (const group of groupsOf(messages)) {
    const chain = chainOf.get(group[0].run_id);
    if (chain === undefined) {
      entries.push(...pastOf(group));
      continue;
    }
    const asked = group.filter((message) => message.message_type === "user_message" && !shown.has(message.id));
    entries.push(...asked.map(saidOf));
    // What it was asked is in the history, so what is still on its way to it is injected.
    if (!placed.has(chain)) entries.push(liveOf(chain), ...sentTo(open, chain));
    placed.add(chain);
  }
  for (const chain of live.filter((one) => !placed.has(one))) entries.push(...sentTo(open, chain), liveOf(chain));
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

/** @param {any[]} group @returns {Entry[]} */
function pastOf(group) {
  /** @type {Entry[]} */
  const entries = [];
  let transcript = emptyTranscript();
  const close = () => {
    const first = transcript.items[0];
    if (first) entries.push({ kind: "past", key: `past:${first.key}`, runId: transcript.runId, transcript });
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
  close();
  return entries;
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
  return open.filter((one) => one.runId !== null && chain.includes(one.runId)).map(sentEntry);
}

/** @param {Chain} chain @returns {Entry} */
function liveOf(chain) {
  return { kind: "live", key: `live:${chain[0]}`, runIds: chain };
}

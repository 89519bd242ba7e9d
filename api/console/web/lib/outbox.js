// The messages that are on their way from a talk, as state of a page.

import { useEffect, useRef, useState } from "../html.js";
import { newOtid } from "./otid.js";
import { keepMessages, keptMessages, sendMessage } from "./sent_messages.js";

/** @typedef {import("./talk_entries.js").Sent} Sent */

/**
 * They are sent again where a page was loaded anew before the server had answered.
 * @param {string} agentId
 * @param {string | null} conversationId
 * @param {{messages: any[] | null, chains: import("./followed_runs.js").Chain[],
 *   runs: import("./followed_runs.js").Run[], reload: () => void}} talk `messages` is null until the history is known
 */
export function useOutbox(agentId, conversationId, { messages, chains, runs, reload }) {
  const threadId = conversationId ?? agentId;
  const [sent, setSent] = useState(() => keptMessages(threadId));
  const restored = useRef(new Set(sent.map((one) => one.otid)));
  const change = (/** @type {(before: Sent[]) => Sent[]} */ how) =>
    setSent((before) => {
      const after = how(before);
      keepMessages(threadId, after);
      return after;
    });
  const update = (/** @type {string} */ otid, /** @type {Partial<Sent>} */ fields) =>
    change((before) => before.map((one) => (one.otid === otid ? { ...one, ...fields } : one)));
  const deliver = async (/** @type {Sent} */ message) => {
    update(message.otid, { error: null });
    try {
      update(message.otid, { runId: await sendMessage(agentId, conversationId, message) });
      reload();
    } catch (thrown) {
      update(message.otid, { error: thrown instanceof Error ? thrown.message : String(thrown) });
    }
  };
  useEffect(() => {
    for (const message of sent.filter((one) => one.runId === null && one.error === null)) deliver(message);
  }, []);
  useEffect(() => {
    if (messages === null) return;
    const stored = new Set(messages.map((message) => message.otid));
    const followed = new Set(chains.flat().map((run) => run.id));
    const listed = new Set(runs.map((run) => run.id));
    // Not followed any more: the history has it, if further up than it is shown, or the run was rolled back.
    const isOver = (/** @type {Sent} */ one) =>
      one.runId !== null && (restored.current.has(one.otid) || listed.has(one.runId));
    // A run that fails may take what it was asked out of the history again.
    const isDone = (/** @type {Sent} */ one) =>
      !followed.has(one.runId ?? "") && (stored.has(one.otid) || isOver(one));
    if (sent.some(isDone)) change((before) => before.filter((one) => !isDone(one)));
  }, [messages, chains, runs, sent]);
  return {
    sent,
    send: (/** @type {string} */ text, /** @type {string} */ ifBusy) => {
      const message = { otid: newOtid(), text, ifBusy, runId: null, error: null };
      change((before) => [...before, message]);
      deliver(message);
    },
    sendAgain: deliver,
    discard: (/** @type {Sent} */ message) => change((before) => before.filter((one) => one.otid !== message.otid)),
  };
}

// The messages on their way from a talk, as state of a page. The tab's session storage keeps each under its otid until the
// server has answered, so a reloaded page sends it again, and the server makes one run of both.

import { useEffect, useState } from "../html.js";
import { submit } from "./api.js";
import { newOtid } from "./otid.js";

/** @typedef {import("./talk_entries.js").Sent} Sent */

const KEPT_AS = "holdfast.sent.";

/**
 * @param {string} agentId
 * @param {string | null} conversationId null: the agent's own history
 * @param {ReadonlySet<string>} said the otids of messages in the history or in the conversation's stream
 */
export function useOutbox(agentId, conversationId, said) {
  const keptAs = KEPT_AS + (conversationId ?? agentId);
  const [sent, setSent] = useState(() => kept(keptAs));
  const change = (/** @type {(before: Sent[]) => Sent[]} */ how) =>
    setSent((before) => {
      const after = how(before);
      const unanswered = after.filter((one) => one.runId === null);
      if (unanswered.length === 0) sessionStorage.removeItem(keptAs);
      else sessionStorage.setItem(keptAs, JSON.stringify(unanswered));
      return after;
    });
  const update = (/** @type {string} */ otid, /** @type {Partial<Sent>} */ fields) =>
    change((before) => before.map((one) => (one.otid === otid ? { ...one, ...fields } : one)));
  const deliver = async (/** @type {Sent} */ { otid, text, ifBusy }) => {
    update(otid, { error: null });
    const path = conversationId ? `/v1/conversations/${conversationId}/messages` : `/v1/agents/${agentId}/messages`;
    const messages = [{ role: "user", content: text, otid }];
    try {
      update(otid, { runId: await submit(path, { messages, stream_tokens: true, if_busy: ifBusy }) });
    } catch (thrown) {
      update(otid, { error: thrown instanceof Error ? thrown.message : String(thrown) });
    }
  };
  useEffect(() => {
    for (const message of sent.filter((one) => one.error === null)) deliver(message);
  }, []);
  useEffect(() => {
    if (sent.some((one) => said.has(one.otid))) change((before) => before.filter((one) => !said.has(one.otid)));
  }, [said, sent]);
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

/** @param {string} keptAs @returns {Sent[]} */
function kept(keptAs) {
  try {
    return JSON.parse(sessionStorage.getItem(keptAs) ?? "[]");
  } catch {
    return [];
  }
}

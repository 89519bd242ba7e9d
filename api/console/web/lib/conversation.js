// Folds the stream of a conversation into its turns: the messages, and the answer over all runs of the turn. It makes no
// requests and draws nothing.

import { addFrame, emptyTranscript } from "./frames.js";

/** @typedef {import("./server_sent_events.js").Frame} Frame */
/**
 * @typedef {{id: string, otid: string | null, role: string, content: any}} Asked
 *
 * @typedef {{number: number, runIds: string[], at: string | null, asked: Asked[],
 *   transcript: import("./frames.js").Transcript, isWaiting: boolean}} Turn `isWaiting`: for a person; `runIds`: the run
 *   that answers, and its continuations after approvals
 *
 * @typedef {{turns: Turn[], otids: ReadonlySet<string>, present: {queued: string[]} | null}} Conversation `otids`: of all
 *   messages; `present`: the queued runs when the stream had caught up with the present, null before
 */

/** @type {Conversation} */
export const EMPTY = { turns: [], otids: new Set(), present: null };

/**
 * The conversation with one more frame. The transcript of its last turn must not be used again. Frames come in cursor order.
 * @param {Conversation} conversation
 * @param {Frame} frame
 * @returns {Conversation}
 */
export function addEvent(conversation, frame) {
  const { data, cursor } = frame;
  if (data?.event_type === "caught_up") return { ...conversation, present: data.event_data };
  if (cursor === "" || data === null) return conversation;
  const number = Number(cursor.split(".", 1)[0]);
  const last = conversation.turns.at(-1);
  const known = last?.number === number ? last : newTurn(number);
  const add = NOTES[data.event_type] ?? withFrame;
  const turns = known === last ? conversation.turns.slice(0, -1) : conversation.turns;
  const said = [...saidIn(data)];
  const otids = said.length === 0 ? conversation.otids : new Set([...conversation.otids, ...said]);
  return { ...conversation, turns: [...turns, add(known, frame)], otids };
}

/** @param {number} number @returns {Turn} */
function newTurn(number) {
  return { number, runIds: [], at: null, asked: [], transcript: emptyTranscript(), isWaiting: false };
}

/** @type {Record<string, (turn: Turn, frame: Frame) => Turn>} */
const NOTES = {
  run_started: (turn, frame) => ({
    ...withFrame(turn, frame),
    runIds: [...turn.runIds, frame.data.run_id],
    at: turn.at ?? frame.data.date,
    asked: [...turn.asked, ...frame.data.event_data.input],
  }),
  run_ended: (turn, { data, seq }) => {
    const { status, stop_reason: stopReason } = data.event_data;
    const items = turn.transcript.items.map((item) => (item.pieces.length === 0 ? item : { ...item, pieces: [] }));
    // No frame can void parts of an ended turn any more, and a tab that is open for days keeps many turns.
    const transcript = { ...turn.transcript, items, stopReason, hasEnded: true, lastSeq: seq };
    return { ...turn, transcript, isWaiting: status === "awaiting_approval" };
  },
  approvals_resolved: (turn, { data }) => {
    const decisions = new Map(data.event_data.decisions.map((/** @type {any} */ one) => [one.tool_call_id, one]));
    const isStopped = [...decisions.values()].every(({ decision }) => decision === "cancelled" || decision === "expired");
    const items = turn.transcript.items.map((item) => {
      const decision = decisions.get(item.call?.id);
      const isOpen = item.call?.result === undefined && item.leg === turn.transcript.leg;
      return item.call && decision && isOpen ? { ...item, call: { ...item.call, decision } } : item;
    });
    // If another run continues it, that run is the transcript's end.
    const stopReason = isStopped ? "cancelled" : null;
    return { ...turn, transcript: { ...turn.transcript, items, stopReason }, isWaiting: false };
  },
};

/** @param {Turn} turn @param {Frame} frame @returns {Turn} */
function withFrame(turn, frame) {
  return { ...turn, transcript: addFrame(turn.transcript, frame) };
}

/**
 * The otids of users' messages.
 * @param {any} data
 * @returns {string[]}
 */
function saidIn(data) {
  if (data.event_type === "run_started") return data.event_data.input.map((/** @type {Asked} */ one) => one.otid ?? "");
  return data.message_type === "user_message" && data.otid ? [data.otid] : [];
}

/** @param {Conversation} conversation @returns {Turn | undefined} the turn that is being answered */
export function turnAtWork({ turns }) {
  const last = turns.at(-1);
  return last === undefined || last.isWaiting || last.transcript.hasEnded ? undefined : last;
}

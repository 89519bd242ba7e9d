// A talk with an agent as state of a page: the history, the conversation's stream, the queued runs, and the messages on
// their way. The server has all of it except the last, so all pages on a conversation show the same.

import { useEffect, useMemo, useRef, useSignal, useState } from "../html.js";
import { request, streamEvents } from "./api.js";
import { addEvent, EMPTY, turnAtWork } from "./conversation.js";
import { useOutbox } from "./outbox.js";
import { usePolled } from "./polling.js";
import { pastEntries, presentEntries, shownTurns } from "./talk_entries.js";
import { oncePerFrame, whileSeen } from "./visibility.js";

/** @typedef {import("./talk_entries.js").Run} Run */
/**
 * @typedef {{from: string, messages: any[], ended: Run[]}} Past `from`: the cursor after which the stream is read;
 *   `messages`: the newest ones, oldest first; `ended`: the runs whose ends are shown
 *
 * @typedef {{conversation: import("./conversation.js").Conversation, state: import("./api.js").StreamState,
 *   error: Error | null}} Shown
 */

/** The number of turns that are read from the stream; earlier ones are read from the history, which is much shorter. */
const STREAMED = 2;
const MESSAGES = 50;
const ENDED = 20;
const QUEUED = 500;

/**
 * @param {string} agentId
 * @param {string | null} conversationId null: the agent's own history
 */
export function useTalk(agentId, conversationId) {
  const events = `/v1/conversations/${conversationId ?? agentId}/events`;
  const thread = { agent_id: agentId, conversation_id: conversationId ?? "default" };
  const past = usePolled((signal) => pastOf(events, thread, signal), 0, []);
  const known = past.data.value;
  const older = useOlder(known?.messages, (before) => messagesOf(thread, before));
  const messages = useMemo(() => [...older.messages, ...(known?.messages ?? [])], [older.messages, known]);
  const { conversation, state, error } = useConversation(events, known).value;
  const said = useMemo(
    () => new Set([...conversation.otids, ...messages.map((message) => message.otid)]),
    [conversation.otids, messages],
  );
  const outbox = useOutbox(agentId, conversationId, said);
  const atWork = turnAtWork(conversation);
  const queued = useQueue(thread, atWork !== undefined || outbox.sent.length > 0, conversation.present);
  // Until the stream has caught up with the present, the history shows at least as much.
  const turns = conversation.present ? shownTurns(conversation.turns, messages) : [];
  const runIds = turns.flatMap((turn) => turn.runIds).join();
  const pastOnes = useMemo(
    () => pastEntries(messages, known?.ended ?? [], new Set(runIds.split(","))),
    [messages, known, runIds],
  );
  return {
    entries: [...pastOnes, ...presentEntries(turns, queued, outbox.sent)],
    error: past.error.value ?? (state === "ended" ? error : null),
    lost: state === "waiting" ? error : null,
    reload: past.reload,
    isLoaded: known !== undefined,
    older,
    active: [...(atWork?.runIds.slice(-1) ?? []), ...queued.map((run) => run.id)],
    waitsForPerson: conversation.turns.at(-1)?.isWaiting ?? false,
    ...outbox,
  };
}

/**
 * The newest turns of a conversation after a cursor, as they arrive.
 * @param {string} path
 * @param {Past | undefined} past undefined: not yet
 * @returns {import("../html.js").Signal<Shown>}
 */
function useConversation(path, past) {
  const shown = useSignal(/** @type {Shown} */ ({ conversation: EMPTY, state: "connecting", error: null }));
  useEffect(() => {
    if (past === undefined) return undefined;
    const ending = new AbortController();
    let now = { ...shown.peek(), conversation: EMPTY };
    let after = past.from;
    /** @type {import("./api.js").Frame[]} */
    let waiting = [];
    const draw = oncePerFrame(() => {
      now = { ...now, conversation: waiting.reduce(addEvent, now.conversation) };
      waiting = [];
      shown.value = now;
    }, ending.signal);
    const onState = (/** @type {Shown["state"]} */ state, /** @type {Error | null} */ error) => {
      now = { ...now, state, error };
      draw();
    };
    const onFrame = (/** @type {import("./api.js").Frame} */ frame) => {
      after = frame.cursor || after;
      waiting.push(frame);
      draw();
    };
    const read = (/** @type {AbortSignal} */ signal) => streamEvents(path, { after, signal, onFrame, onState });
    whileSeen(read, ending.signal).catch((thrown) => onState("ended", thrown));
    return () => ending.abort();
  }, [path, past]);
  return shown;
}

/**
 * The queued runs of a history, oldest first: the conversation's stream shows a run only when it begins.
 * @param {{agent_id: string, conversation_id: string}} thread
 * @param {boolean} isBusy a run is at work or a message on its way, so that runs may be queued
 * @param {import("./conversation.js").Conversation["present"]} present
 * @returns {Run[]}
 */
function useQueue(thread, isBusy, present) {
  const known = useRef({ present, isWaiting: false });
  const isWaiting = known.current.present === present ? known.current.isWaiting : (present?.queued.length ?? 0) > 0;
  const follows = isBusy || isWaiting;
  const query = { ...thread, statuses: "created", order: "asc", limit: QUEUED };
  const load = async (/** @type {AbortSignal} */ signal) => {
    /** @type {Run[]} */
    const runs = follows ? await request("GET", "/v1/runs", { query, signal }) : [];
    const queued = runs.filter((run) => !run.metadata?.continues_run_id);
    known.current = { present, isWaiting: queued.length > 0 };
    return queued;
  };
  const { data } = usePolled(load, follows ? { agentId: thread.agent_id } : 0, [present]);
  return data.value ?? NONE;
}

/** @type {Run[]} */
const NONE = [];

/**
 * The messages before the oldest shown message, a page at a time.
 * @param {any[] | undefined} newest undefined until it is known
 * @param {(before: string) => Promise<any[]>} pageBefore
 * @returns {{messages: any[], show: (() => void) | null, isLoading: boolean, error: Error | null}} `show` is null without
 *   earlier messages
 */
function useOlder(newest, pageBefore) {
  const [messages, setMessages] = useState(/** @type {any[]} */ ([]));
  const [isLoading, setIsLoading] = useState(false);
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  // A second click may come before the page is drawn after the first.
  const asked = useRef(false);
  const isWhole = useRef(false);
  const oldest = (messages[0] ?? newest?.[0])?.id;
  const show = async () => {
    if (asked.current) return;
    asked.current = true;
    setIsLoading(true);
    try {
      const page = await pageBefore(oldest);
      isWhole.current = page.length < MESSAGES;
      setMessages((before) => [...page, ...before]);
      setError(null);
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    } finally {
      asked.current = false;
      setIsLoading(false);
    }
  };
  const hasMore = (newest?.length ?? 0) >= MESSAGES && !isWhole.current;
  return { messages, show: hasMore ? show : null, isLoading, error };
}

/**
 * The past of the talk. The stream's present place is read first, so the history has all messages of the turns before it.
 * @param {string} events
 * @param {{agent_id: string, conversation_id: string}} thread
 * @param {AbortSignal} signal
 * @returns {Promise<Past>}
 */
async function pastOf(events, thread, signal) {
  const turn = await presentTurn(events, signal);
  const [messages, ended] = await Promise.all([
    messagesOf(thread, undefined, signal),
    request("GET", "/v1/runs", { query: { ...thread, limit: ENDED }, signal }),
  ]);
  return { from: `${Math.max(0, turn + 1 - STREAMED)}.0.0`, messages, ended };
}

/** The number of the newest turn. @param {string} events @param {AbortSignal} signal @returns {Promise<number>} */
async function presentTurn(events, signal) {
  const enough = new AbortController();
  let turn = 0;
  const onFrame = (/** @type {import("./api.js").Frame} */ { data }) => {
    if (data?.event_type !== "caught_up") return;
    turn = Number(data.event_data.cursor.split(".", 1)[0]);
    enough.abort();
  };
  try {
    await streamEvents(events, { after: "now", signal: AbortSignal.any([signal, enough.signal]), onFrame });
  } catch (thrown) {
    if (!enough.signal.aborted) throw thrown;
  }
  return turn;
}

/**
 * A page of the history, oldest first: the newest page, or the page before a message.
 * @param {{agent_id: string, conversation_id: string}} thread
 * @param {string} [before]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any[]>}
 */
async function messagesOf({ agent_id: agentId, conversation_id: conversationId }, before, signal) {
  const query = { conversation_id: conversationId, limit: MESSAGES, before };
  return request("GET", `/v1/agents/${agentId}/messages`, { query, signal });
}

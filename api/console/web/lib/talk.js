// A talk with an agent as state of a page: the history, the runs that answer now, and what is on its way. The API knows
// all of it but the last, so a page that is loaded again in the middle of an answer goes on where it was.

import { useEffect, useMemo, useRef, useState } from "../html.js";
import { request } from "./api.js";
import { newOtid } from "./otid.js";
import { usePolled } from "./polling.js";
import { keepMessages, keptMessages, sendMessage } from "./sent_messages.js";
import { talkEntries } from "./talk_entries.js";

/** @typedef {import("./talk_entries.js").Chain} Chain */
/** @typedef {import("./talk_entries.js").Sent} Sent */
/**
 * @typedef {{id: string, status: string, stop_reason: string | null, conversation_id: string | null,
 *   metadata: any}} Run
 */
/** @typedef {{messages: any[], hasOlder: boolean}} History */

const EVERY_MS = 1000;
const RUNS = 20;
const MESSAGES = 50;

/**
 * @param {string} agentId
 * @param {string | null} conversationId null: the agent's own history
 */
export function useTalk(agentId, conversationId) {
  const [history, setHistory] = useState(/** @type {History | null} */ (null));
  const [live, setLive] = useState(/** @type {Chain[]} */ ([]));
  const [shownIds, setShownIds] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const known = useRef({ settled: /** @type {Set<string> | null} */ (null), seen: "" });

  const load = async (/** @type {AbortSignal} */ signal) => {
    const runs = await threadRuns(agentId, conversationId, signal);
    const { settled, seen } = known.current;
    const first = settled ?? settledOf(runs);
    // The runs are asked first: one that is not among them yet is found the next time, and then shown from its stream.
    const now = runs.map((run) => `${run.id} ${run.status}`).join();
    if (now !== seen || settled === null) {
      const page = await messagesOf(agentId, conversationId, undefined, signal);
      setHistory((before) => withNewest(before, page));
    }
    known.current = { settled: first, seen: now };
    setLive((before) => runs.filter((run) => !first.has(run.id)).reduceRight(withRun, before));
    return runs;
  };
  const { data, error, reload } = usePolled(load, EVERY_MS, [agentId, conversationId]);
  const outbox = useOutbox(agentId, conversationId, { history, live, reload });
  const entries = useMemo(
    () => talkEntries(history?.messages ?? [], live, outbox.sent, shownIds),
    [history, live, outbox.sent, shownIds],
  );
  const runs = data.value ?? [];
  const showOlder = async () => {
    const oldest = history?.messages[0]?.id;
    const page = await messagesOf(agentId, conversationId, oldest);
    setHistory((before) => before && { messages: [...page, ...before.messages], hasOlder: page.length >= MESSAGES });
  };
  return {
    entries,
    error: error.value,
    reload,
    isLoaded: history !== null,
    hasOlder: history?.hasOlder ?? false,
    showOlder,
    active: runs.filter((run) => run.status === "created" || run.status === "running"),
    waitsForPerson: isParked(runs[0]) && history !== null,
    noteShown: (/** @type {string[]} */ ids) => setShownIds((before) => union(before, ids)),
    ...outbox,
  };
}

/**
 * The messages that are on their way, sent again where a page was loaded anew before the server had answered.
 * @param {string} agentId
 * @param {string | null} conversationId
 * @param {{history: History | null, live: Chain[], reload: () => void}} talk
 */
function useOutbox(agentId, conversationId, { history, live, reload }) {
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
    if (history === null) return;
    const stored = new Set(history.messages.map((message) => message.otid));
    // One from before the page was loaded, whose run is over: the history has it, further up than it is shown.
    const isOver = (/** @type {Sent} */ one) =>
      restored.current.has(one.otid) && one.runId !== null && !live.some((chain) => chain.includes(one.runId ?? ""));
    const isDone = (/** @type {Sent} */ one) => stored.has(one.otid) || isOver(one);
    if (sent.some(isDone)) change((before) => before.filter((one) => !isDone(one)));
  }, [history, live, sent]);
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

/**
 * The newest runs on this history that say something, newest first.
 * @param {string} agentId
 * @param {string | null} conversationId
 * @param {AbortSignal} signal
 * @returns {Promise<Run[]>}
 */
async function threadRuns(agentId, conversationId, signal) {
  const query = { agent_id: agentId, conversation_id: conversationId, limit: RUNS };
  /** @type {Run[]} */
  const runs = await request("GET", "/v1/runs", { query, signal });
  return runs.filter((run) => run.conversation_id === conversationId && !run.metadata?.tool_name);
}

/**
 * The runs that are over when the page is opened: the history has all of them. One that waits for a person is followed.
 * @param {Run[]} runs
 */
function settledOf(runs) {
  const goesOn = new Set(runs.map((run) => run.metadata?.continues_run_id));
  const isOpen = (/** @type {Run} */ run) => run.status === "created" || run.status === "running";
  const waits = (/** @type {Run} */ run) => isParked(run) && !goesOn.has(run.id);
  return new Set(runs.filter((run) => !isOpen(run) && !waits(run)).map((run) => run.id));
}

/** @param {Run | undefined} run */
function isParked(run) {
  return run?.status === "completed" && run.stop_reason === "requires_approval";
}

/**
 * What is followed with one more run; the same list where it is followed already, for what is drawn hangs on it.
 * @param {Chain[]} chains
 * @param {Run} run
 * @returns {Chain[]}
 */
function withRun(chains, run) {
  if (chains.some((chain) => chain.includes(run.id))) return chains;
  const goesOn = chains.find((chain) => chain.includes(run.metadata?.continues_run_id));
  if (goesOn === undefined) return [...chains, [run.id]];
  return chains.map((chain) => (chain === goesOn ? [...chain, run.id] : chain));
}

/**
 * A page of the history, oldest first: the newest, or what is before a message.
 * @param {string} agentId
 * @param {string | null} conversationId
 * @param {string} [before]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any[]>}
 */
async function messagesOf(agentId, conversationId, before, signal) {
  const query = { conversation_id: conversationId ?? "default", limit: MESSAGES, before };
  return request("GET", `/v1/agents/${agentId}/messages`, { query, signal });
}

/**
 * The history after its newest page was read again.
 * @param {History | null} before
 * @param {any[]} page
 * @returns {History}
 */
function withNewest(before, page) {
  const first = page[0]?.id;
  const overlap = before?.messages.findIndex((message) => message.id === first) ?? -1;
  // So much is new that the pages do not meet: what is older is asked for again when somebody wants to see it.
  if (before === null || overlap < 0) return { messages: page, hasOlder: page.length >= MESSAGES };
  return { messages: [...before.messages.slice(0, overlap), ...page], hasOlder: before.hasOlder };
}

/** @param {ReadonlySet<string>} set @param {string[]} ids */
function union(set, ids) {
  return ids.every((id) => set.has(id)) ? set : new Set([...set, ...ids]);
}

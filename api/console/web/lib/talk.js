// A talk with an agent as state of a page: the history, the runs that answer now, and what is on its way. The API knows
// all of it but the last, so a page that is loaded again in the middle of an answer goes on where it was.

import { useMemo, useRef, useState } from "../html.js";
import { request } from "./api.js";
import { followedRuns, isOpen, waitingRun } from "./followed_runs.js";
import { useOutbox } from "./outbox.js";
import { usePolled } from "./polling.js";
import { talkEntries } from "./talk_entries.js";

/** @typedef {import("./followed_runs.js").Chain} Chain */
/** @typedef {import("./followed_runs.js").Run} Run */
/**
 * @typedef {{messages: any[], hasOlder: boolean}} History oldest first
 *
 * @typedef {{history: History | null, chains: Chain[], runs: Run[]}} Known `runs`: the newest ones, newest first
 */

/** A run's stream is read as soon as the list of runs says that it has begun. */
const EVERY_MS = 500;
const RUNS = 20;
/** In the list, where more are queued than its first page holds. */
const MORE_RUNS = 500;
const MESSAGES = 50;

/** @type {Known} */
const NOTHING = { history: null, chains: [], runs: [] };

/**
 * @param {string} agentId
 * @param {string | null} conversationId null: the agent's own history
 */
export function useTalk(agentId, conversationId) {
  const [known, setKnown] = useState(NOTHING);
  const [shownIds, setShownIds] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const seen = useRef(/** @type {string | null} */ (null));

  const load = async (/** @type {AbortSignal} */ signal) => {
    const runs = await threadRuns(agentId, conversationId, signal);
    const now = runs.map((run) => `${run.id} ${run.status} ${run.stop_reason}`).join();
    if (now === seen.current) return;
    // The runs were asked first, so the history has all messages of those that have ended.
    const page = await messagesOf(agentId, conversationId, undefined, signal);
    seen.current = now;
    setKnown((before) => {
      const history = withNewest(before.history, page);
      return { history, chains: followedRuns(before.chains, runs, history.messages), runs };
    });
  };
  const { error, reload } = usePolled(load, EVERY_MS, [agentId, conversationId]);
  const { history, chains, runs } = known;
  const messages = history?.messages ?? null;
  const outbox = useOutbox(agentId, conversationId, { messages, chains, runs, reload });
  const entries = useMemo(
    () => talkEntries(messages ?? [], { chains, runs, sent: outbox.sent, shown: shownIds }),
    [known, outbox.sent, shownIds],
  );
  const change = (/** @type {(before: History) => History} */ how) =>
    setKnown((before) => (before.history === null ? before : { ...before, history: how(before.history) }));
  return {
    entries,
    error: error.value,
    reload,
    isLoaded: history !== null,
    older: useOlder(history, change, (before) => messagesOf(agentId, conversationId, before)),
    active: runs.filter(isOpen),
    waitsForPerson: waitingRun(runs) !== undefined,
    noteShown: (/** @type {string[]} */ ids) => setShownIds((before) => union(before, ids)),
    ...outbox,
  };
}

/**
 * What was said before the oldest message that is shown: a page of it at a time.
 * @param {History | null} history
 * @param {(how: (before: History) => History) => void} change
 * @param {(before: string) => Promise<any[]>} pageBefore
 * @returns {{show: (() => void) | null, isLoading: boolean, error: Error | null}} `show` is null where there is no more
 */
function useOlder(history, change, pageBefore) {
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isLoading, setIsLoading] = useState(false);
  // A second click comes before the page is drawn with the first.
  const asked = useRef(false);
  const oldest = history?.messages[0]?.id;
  const show = async () => {
    if (asked.current) return;
    asked.current = true;
    setIsLoading(true);
    try {
      const page = await pageBefore(oldest);
      change((before) => withOlder(before, oldest, page));
      setError(null);
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    } finally {
      asked.current = false;
      setIsLoading(false);
    }
  };
  return { show: history?.hasOlder && oldest !== undefined ? show : null, isLoading, error };
}

/**
 * The newest runs on this history, newest first: so many that the first that has not ended is among them, and the one that
 * waits for a person before those that are queued behind it.
 * @param {string} agentId
 * @param {string | null} conversationId
 * @param {AbortSignal} signal
 * @returns {Promise<Run[]>}
 */
async function threadRuns(agentId, conversationId, signal) {
  /** @type {Run[]} */
  const runs = [];
  for (;;) {
    const limit = runs.length === 0 ? RUNS : MORE_RUNS;
    const query = { agent_id: agentId, conversation_id: conversationId ?? "default", limit, after: runs.at(-1)?.id };
    /** @type {Run[]} */
    const page = await request("GET", "/v1/runs", { query, signal });
    runs.push(...page);
    const oldest = page.at(-1);
    if (oldest === undefined || page.length < limit || !isOpen(oldest)) return runs;
  }
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

/**
 * The history with the page before its oldest message. It may begin elsewhere by now.
 * @param {History} before
 * @param {string} oldest
 * @param {any[]} page
 * @returns {History}
 */
function withOlder(before, oldest, page) {
  if (before.messages[0]?.id !== oldest) return before;
  return { messages: [...page, ...before.messages], hasOlder: page.length >= MESSAGES };
}

/** @param {ReadonlySet<string>} set @param {string[]} ids */
function union(set, ids) {
  return ids.every((id) => set.has(id)) ? set : new Set([...set, ...ids]);
}

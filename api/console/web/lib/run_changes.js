// The stream of run changes for dashboards. A browser opens six connections to one server for all its tabs together, so
// all parts of a page share one: that of the whole project if any part needs it, otherwise one per agent.

import { ApiError, streamEvents } from "./api.js";
import { key } from "./session.js";
import { whileSeen } from "./visibility.js";

const PROJECT = "/v1/events";

/**
 * @typedef {{run_id: string, event_data: {agent_id: string, conversation_id: string | null, status: string}}} RunChange
 *
 * @typedef {{agentId: string | null, onChange: (change: RunChange | null) => void, onLoss: (error: Error) => void}} Listener
 *   `agentId`: null for all agents of the project. `onChange` gets null whenever a connection has begun: earlier
 *   changes are unknown
 */

/** @type {Set<Listener>} */
const listeners = new Set();

/** @type {Map<string, Connection>} the connections of this tab, by their paths */
const connections = new Map();

/** The key that may not follow the project; null: none is known. @type {string | null} */
let refusedKey = null;

/**
 * Reports each change, until the signal ends it. A key of single agents may not follow the project: its listener gets the
 * changes of the agents that other listeners name.
 * @param {Listener} listener
 * @param {AbortSignal} signal
 */
export function followRuns(listener, signal) {
  if (signal.aborted) return;
  listeners.add(listener);
  signal.addEventListener("abort", () => {
    listeners.delete(listener);
    connectSoon();
  });
  connectSoon();
}

let isAsked = false;

/** Connects once for all parts of a page that appear or disappear together. */
function connectSoon() {
  if (isAsked) return;
  isAsked = true;
  queueMicrotask(() => {
    isAsked = false;
    connect();
  });
}

function connect() {
  const wanted = wantedPaths();
  for (const [path, connection] of connections) {
    if (!wanted.has(path) || connection.key !== key.peek()) connection.end();
  }
  for (const path of wanted) {
    if (!connections.has(path)) connections.set(path, new Connection(path));
  }
}

/** @returns {Set<string>} */
function wantedPaths() {
  const agentIds = [...listeners].map((listener) => listener.agentId);
  if (agentIds.includes(null) && refusedKey !== key.peek()) return new Set([PROJECT]);
  const named = agentIds.filter((agentId) => agentId !== null);
  return new Set(named.map((agentId) => `/v1/agents/${encodeURIComponent(agentId)}/events`));
}

class Connection {
  /** @param {string} path */
  constructor(path) {
    this.path = path;
    this.key = key.peek();
    this.isCaughtUp = false;
    this.ending = new AbortController();
    const read = (/** @type {AbortSignal} */ signal) =>
      streamEvents(path, {
        signal,
        onFrame: ({ data }) => this.tell(data),
        onState: (_, error) => this.note(error),
      });
    whileSeen(read, this.ending.signal).catch((thrown) => this.fail(thrown));
  }

  end() {
    this.ending.abort();
    connections.delete(this.path);
  }

  /** @param {any} data */
  tell(data) {
    const isMark = data?.event_type === "caught_up";
    // The runs that have not ended are listed first.
    if (isMark) this.isCaughtUp = true;
    if (!this.isCaughtUp) return;
    for (const listener of listeners) {
      if (isMark ? this.concerns(listener) : isAbout(listener, data)) listener.onChange(isMark ? null : data);
    }
  }

  /** @param {Error | null} error */
  note(error) {
    this.isCaughtUp = false;
    if (error === null) return;
    for (const listener of listeners) if (this.concerns(listener)) listener.onLoss(error);
  }

  /** @param {unknown} thrown an error that no retry can help */
  fail(thrown) {
    if (this.ending.signal.aborted) return;
    this.end();
    if (this.path === PROJECT && thrown instanceof ApiError && thrown.status === 403) {
      refusedKey = key.peek();
      connectSoon();
    }
    this.note(thrown instanceof Error ? thrown : new Error(String(thrown)));
  }

  /** @param {Listener} listener */
  concerns({ agentId }) {
    return this.path === PROJECT || (agentId !== null && this.path.includes(encodeURIComponent(agentId)));
  }
}

/** @param {Listener} listener @param {RunChange | null} change */
function isAbout({ agentId }, change) {
  return agentId === null || change?.event_data.agent_id === agentId;
}

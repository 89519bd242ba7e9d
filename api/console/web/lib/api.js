// Calls the API like any other client: JSON requests, and streams of runs that resume where they were.

import { key, noteRefusal } from "./session.js";
import { framesOf } from "./server_sent_events.js";

/** @typedef {import("./server_sent_events.js").Frame} Frame */
/** @typedef {"connecting" | "live" | "waiting" | "ended"} StreamState waiting: the server is away and will be tried again */

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5000;

/** An error that the server answered, or a missing answer. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 without an answer
   * @param {string} message
   * @param {number | null} retryAfter seconds
   */
  constructor(status, message, retryAfter = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/**
 * A request and its JSON answer. Throws `ApiError`, and `AbortError` when the signal ends it.
 * @param {string} method
 * @param {string} path begins with /v1/
 * @param {{query?: Record<string, unknown>, body?: unknown, signal?: AbortSignal}} [options] a list in the query is sent
 *   as one parameter per value; undefined, null and "" are omitted
 * @returns {Promise<any>}
 */
export async function request(method, path, { query, body, signal } = {}) {
  const answer = await send(method, path + asQuery(query), body, signal);
  const text = await answer.text();
  return text === "" ? null : JSON.parse(text);
}

/**
 * @typedef {{signal?: AbortSignal, onFrame: (frame: Frame) => void,
 *   onState?: (state: StreamState, error: ApiError | null) => void}} Reader `onFrame` also gets the mark of the end, whose
 *   data is null
 */

/**
 * Reads a run's stream to the end of the run, however often the connection is lost.
 * @param {string} runId
 * @param {Reader & {startingAfter?: number}} reader `startingAfter`: the number of the last known frame
 * @returns {Promise<void>} throws `ApiError` if no retry can help: the run is unknown, the key is not valid
 */
export function streamRun(runId, { startingAfter = 0, ...reader }) {
  const path = `/v1/runs/${encodeURIComponent(runId)}/stream`;
  const open = (/** @type {string} */ after) => {
    const body = { starting_after: Number(after), include_status_events: true, include_event_times: true };
    return send("POST", path, body, reader.signal);
  };
  return streamed(open, String(startingAfter), reader);
}

/**
 * Reads the stream of a path ending in `/events`: a conversation after a cursor, or the runs of an agent or of the
 * project. It resumes however often the connection is lost.
 * @param {string} path
 * @param {Reader & {after?: string}} reader `after`: a cursor, or `now`
 * @returns {Promise<void>} returns at the end of the stream; throws as `streamRun` does
 */
export function streamEvents(path, { after = "", ...reader }) {
  const open = (/** @type {string} */ last) => send("GET", path + asQuery({ after: last }), undefined, reader.signal);
  return streamed(open, after, reader);
}

/**
 * @param {(after: string) => Promise<Response>} open
 * @param {string} after
 * @param {Reader} reader
 */
async function streamed(open, after, { signal, onFrame, onState = () => undefined }) {
  let last = after;
  let pause = FIRST_PAUSE_MS;
  for (;;) {
    onState("connecting", null);
    try {
      const answer = await open(last);
      onState("live", null);
      for await (const frame of framesOf(bodyOf(answer))) {
        pause = FIRST_PAUSE_MS;
        last = frame.cursor || last;
        onFrame(frame);
        if (frame.data === null) {
          onState("ended", null);
          return;
        }
      }
    } catch (thrown) {
      const error = asLost(thrown, signal);
      onState("waiting", error);
      pause = Math.max(pause, (error.retryAfter ?? 0) * 1000);
    }
    await paused(pause, signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

/**
 * Sends messages for an answer in the background. Returns the id of the answering run. Throws `ApiError`.
 * @param {string} path the path of an agent's or a conversation's messages
 * @param {Record<string, unknown>} body
 * @returns {Promise<string>}
 */
export async function submit(path, body) {
  const answer = await send("POST", path, { ...body, background: true, streaming: true }, undefined);
  for await (const { data } of framesOf(bodyOf(answer))) return data.run_id;
  throw new ApiError(0, "The server ended the stream before it said which run it had begun");
}

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<Response>}
 */
async function send(method, path, body, signal) {
  /** @type {Record<string, string>} */
  const headers = key.value === "" ? {} : { Authorization: `Bearer ${key.value}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: sent, signal, cache: "no-store", credentials: "omit" });
  } catch (thrown) {
    if (signal?.aborted) throw thrown;
    throw new ApiError(0, "The server does not answer. It may be starting again, or your connection is lost.");
  }
  if (answer.ok) return answer;
  const said = whatWasSaid(await answer.text(), answer);
  if (answer.status === 401) noteRefusal(said);
  const after = Number(answer.headers.get("Retry-After"));
  throw new ApiError(answer.status, said, after > 0 ? after : null);
}

/**
 * @param {string} text
 * @param {Response} answer
 */
function whatWasSaid(text, answer) {
  try {
    const { message, detail } = JSON.parse(text);
    const said = message ?? detail;
    if (typeof said === "string") return said;
  } catch {
    // The answer is not JSON, so a proxy has sent it.
  }
  return `The server answered ${answer.status} ${answer.statusText}`;
}

/** @param {Response} answer */
function bodyOf(answer) {
  if (answer.body === null) throw new ApiError(0, "The server sent no stream");
  return answer.body;
}

/**
 * Returns an error after which a retry may succeed; throws all others.
 * @param {unknown} thrown
 * @param {AbortSignal | undefined} signal
 * @returns {ApiError}
 */
function asLost(thrown, signal) {
  if (signal?.aborted) throw thrown;
  if (!(thrown instanceof ApiError)) return new ApiError(0, "The connection was lost");
  if (thrown.status === 0 || thrown.status === 429 || thrown.status >= 500) return thrown;
  throw thrown;
}

/**
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @returns {Promise<void>}
 */
function paused(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

/** @param {Record<string, unknown> | undefined} query */
function asQuery(query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") found.append(name, String(one));
    }
  }
  const text = found.toString();
  return text === "" ? "" : `?${text}`;
}

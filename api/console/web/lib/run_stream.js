// A run's stream as state of a page: followed to its end, folded as it comes, shown once per drawn frame. A tab that
// nobody sees reads no stream: when it is seen again, it goes on behind the last number.

import { useEffect, useRef, useSignal } from "../html.js";
import { streamRun } from "./api.js";
import { addFrame, emptyTranscript } from "./frames.js";
import { oncePerFrame, whileSeen } from "./visibility.js";
import { addToTimeline, emptyTimeline } from "./waterfall.js";

/** @typedef {import("./server_sent_events.js").Frame} Frame */
/** @typedef {import("./api.js").StreamState} StreamState */
/**
 * @typedef {{transcript: import("./frames.js").Transcript, timeline: import("./waterfall.js").Timeline, events: Frame[],
 *   state: StreamState, error: Error | null, interruptions: number, position: Position | null, turns: number}} Shown
 *   `events`: as they came; `interruptions`: how often the connection was lost; `position`: how far this tab had come when it
 *   was loaded anew, null where it had not seen the run; `turns`: how often something else came than more of the same
 *   message, so that what is not in the stream may have changed, too
 * @typedef {{leg: number, seq: number}} Position a number in a run's log; `leg` is 1 in that of its first continuation
 */

/** How far a tab has come in a run. */
const SEEN = "holdfast.seen.";

/**
 * Follows a run, and those that go on with it after approvals. A tab that is loaded again replays the logs and knows how far
 * it had come.
 * @param {string[]} runIds a run and its continuations, as far as they are known; the list may grow
 * @param {number} startingAfter of the first one
 * @returns {import("../html.js").Signal<Shown>}
 */
export function useRunStream(runIds, startingAfter = 0) {
  const first = runIds[0] ?? "";
  const shown = useSignal(nothing(first));
  const following = useRef(/** @type {((runId: string) => void) | null} */ (null));
  useEffect(() => {
    const ending = new AbortController();
    const follower = new Follower(first, ending.signal, (now) => (shown.value = now));
    let isFirst = true;
    let before = Promise.resolve();
    following.current = (runId) => {
      const after = isFirst ? startingAfter : 0;
      isFirst = false;
      before = before.then(() => follower.follow(runId, after));
    };
    return () => ending.abort();
  }, [first, startingAfter]);
  const followed = useRef({ first: "", startingAfter: -1, count: 0 });
  useEffect(() => {
    const known = followed.current;
    const isSame = known.first === first && known.startingAfter === startingAfter;
    const from = isSame ? known.count : 0;
    followed.current = { first, startingAfter, count: runIds.length };
    runIds.slice(from).forEach((runId) => following.current?.(runId));
  }, [runIds.join(), startingAfter]);
  return shown;
}

/** Reads streams one after the other, and shows what has come once per drawn frame. */
class Follower {
  /**
   * @param {string} first the run by whose id the tab remembers how far it has come
   * @param {AbortSignal} signal
   * @param {(shown: Shown) => void} show
   */
  constructor(first, signal, show) {
    this.first = first;
    this.signal = signal;
    this.show = show;
    /** @type {Shown} */
    this.state = nothing(first);
    /** @type {Frame[]} */
    this.waiting = [];
    /** Of the last frame: what it is, and of which message. */
    this.message = "";
    this.drawSoon = oncePerFrame(() => this.draw(), signal);
  }

  /**
   * Returns at the end of the run's stream, or when nothing more will come of it.
   * @param {string} runId
   * @param {number} startingAfter
   */
  async follow(runId, startingAfter) {
    let last = startingAfter;
    const onFrame = (/** @type {Frame} */ frame) => {
      // Signs of life repeat the last number.
      if (frame.seq <= last && frame.data?.message_type === "ping") return;
      last = Math.max(last, frame.seq);
      this.waiting.push(frame);
      this.drawSoon();
    };
    const read = (/** @type {AbortSignal} */ signal) =>
      streamRun(runId, { startingAfter: last, signal, onFrame, onState: (now, error) => this.noteState(now, error) });
    try {
      await whileSeen(read, this.signal);
    } catch (thrown) {
      if (this.signal.aborted) return;
      this.state = { ...this.state, state: "ended", error: thrown instanceof Error ? thrown : new Error(String(thrown)) };
      this.drawSoon();
    }
  }

  /**
   * @param {StreamState} now
   * @param {Error | null} error
   */
  noteState(now, error) {
    const isLost = now === "waiting" && this.state.state === "live";
    const interruptions = this.state.interruptions + (isLost ? 1 : 0);
    this.state = { ...this.state, state: now, error, interruptions };
    this.drawSoon();
  }

  draw() {
    let { transcript, timeline, turns } = this.state;
    for (const frame of this.waiting) {
      const { message_type: type, id } = frame.data ?? {};
      const message = `${type} ${id}`;
      if (message !== this.message) turns += 1;
      this.message = message;
      transcript = addFrame(transcript, frame);
      timeline = addToTimeline(timeline, frame);
      this.state.events.push(frame);
    }
    this.waiting = [];
    this.state = { ...this.state, transcript, timeline, turns };
    this.show(this.state);
    if (transcript.lastSeq > 0) remember(this.first, { leg: transcript.leg, seq: transcript.lastSeq });
  }
}

/**
 * @param {string} runId
 * @returns {Shown}
 */
function nothing(runId) {
  return {
    transcript: emptyTranscript(),
    timeline: emptyTimeline(),
    events: [],
    state: "connecting",
    error: null,
    interruptions: 0,
    position: remembered(runId),
    turns: 0,
  };
}

/**
 * @param {string} runId
 * @param {Position} position
 */
function remember(runId, position) {
  sessionStorage.setItem(SEEN + runId, JSON.stringify(position));
}

/**
 * @param {string} runId
 * @returns {Position | null}
 */
function remembered(runId) {
  const kept = sessionStorage.getItem(SEEN + runId);
  return kept === null ? null : JSON.parse(kept);
}

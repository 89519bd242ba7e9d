// A run's stream as state of a page: followed to its end, folded as it arrives, shown once per drawn frame. A hidden tab
// reads no stream. When it is visible again, it resumes after the last number.

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
 *   `events`: in order of arrival; `interruptions`: the number of lost connections; `position`: the last number that this
 *   tab had read when it was reloaded, null if it had not seen the run; `turns`: the number of changes to another message
 *   or kind of frame, after which data outside of the stream may have changed, too
 * @typedef {{leg: number, seq: number}} Position a number in a run's log; `leg` is 1 for its first continuation
 */

/** The position that a tab has reached in a run. */
const SEEN = "holdfast.seen.";

/**
 * Follows a run and its continuations after approvals. A reloaded tab replays the logs and knows the position that it had
 * reached.
 * @param {string[]} runIds a run and its known continuations; the list may grow
 * @param {number} startingAfter the number in the first run
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

/** Reads streams one after the other, and shows new frames once per drawn frame. */
class Follower {
  /**
   * @param {string} first the run under whose id the tab stores its position
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
    /** The kind and the message of the last frame. */
    this.message = "";
    this.drawSoon = oncePerFrame(() => this.draw(), signal);
  }

  /**
   * Returns at the end of the run's stream, or when the stream has failed for good.
   * @param {string} runId
   * @param {number} startingAfter
   */
  async follow(runId, startingAfter) {
    let last = startingAfter;
    const onFrame = (/** @type {Frame} */ frame) => {
      // Pings repeat the last number.
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

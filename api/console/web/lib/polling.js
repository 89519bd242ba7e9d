// Repeats a request in an interval, or after each change, while a person sees the page.

import { useEffect, useRef, useSignal } from "../html.js";
import { ApiError } from "./api.js";
import { followRuns } from "./run_changes.js";

/** @typedef {import("./run_changes.js").RunChange} RunChange */
/**
 * @typedef {{agentId: string | null, concerns?: (change: RunChange) => boolean}} Runs those of an agent, or of the project;
 *   `concerns`: whether a change matters
 */

const LONGEST_PAUSE_MS = 5000;
/** The shortest time between a change and the next request, in which further changes gather. */
const GATHER_MS = 150;

/**
 * The result of `load`, kept fresh. A hidden tab makes no requests, and two requests are never under way at once.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {number | Runs} when ms between the end of one request and the next, 0: one request; or the runs whose changes
 *   each cause a request
 * @param {unknown[]} deps a change of these begins anew
 * @param {unknown} [mark] stands for the page's other news: a new mark causes a request without beginning anew
 * @returns {{data: import("../html.js").Signal<T | undefined>, error: import("../html.js").Signal<Error | null>,
 *   reload: () => void, askSoon: () => void}} `data` stays while `error` has the reason why there is nothing newer;
 *   `askSoon` repeats the request without beginning anew
 */
export function usePolled(load, when, deps, mark) {
  const data = useSignal(/** @type {T | undefined} */ (undefined));
  const error = useSignal(/** @type {Error | null} */ (null));
  const asked = useSignal(0);
  const soon = useRef(() => {});
  const runs = useRef(when);
  runs.current = when;
  useEffect(() => {
    const ending = new AbortController();
    const everyMs = typeof when === "number" ? when : 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let isAsking = false;
    let isStale = false;
    let isKnown = false;
    let pause = everyMs;
    const fail = (/** @type {unknown} */ thrown) => {
      if (!ending.signal.aborted) error.value = thrown instanceof Error ? thrown : new Error(String(thrown));
    };
    const askIn = (/** @type {number} */ ms) => {
      if (timer === undefined && !ending.signal.aborted) timer = setTimeout(ask, ms);
    };
    const ask = async () => {
      clearTimeout(timer);
      timer = undefined;
      if (isAsking || ending.signal.aborted || document.hidden) return;
      isAsking = true;
      const wasTold = isStale || typeof when !== "number";
      isStale = false;
      try {
        const found = await load(ending.signal);
        if (ending.signal.aborted) return;
        data.value = found;
        error.value = null;
        isKnown = true;
        pause = everyMs;
      } catch (thrown) {
        fail(thrown);
        // Requests to a server that is away, or refuses too many requests, become less and less frequent.
        const told = thrown instanceof ApiError ? (thrown.retryAfter ?? 0) * 1000 : 0;
        pause = Math.max(told, Math.min(Math.max(pause, GATHER_MS) * 2, LONGEST_PAUSE_MS));
        isStale ||= wasTold;
      } finally {
        isAsking = false;
        if (everyMs > 0 || isStale) askIn(Math.max(pause, GATHER_MS));
      }
    };
    const noteChange = () => {
      isStale = true;
      if (!isAsking) askIn(GATHER_MS);
    };
    const onChange = (/** @type {RunChange | null} */ change) => {
      const concerns = typeof runs.current === "number" ? undefined : runs.current.concerns;
      if (change === null || concerns === undefined || concerns(change)) noteChange();
    };
    const onSeen = () => {
      // The answer of a single request is known, unless the tab was hidden then or the request failed.
      if (when !== 0 || !isKnown) ask();
    };
    soon.current = noteChange;
    ask();
    if (typeof when !== "number") followRuns({ agentId: when.agentId, onChange, onLoss: fail }, ending.signal);
    document.addEventListener("visibilitychange", onSeen);
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onSeen);
    };
  }, [...deps, typeof when === "number" ? when : `of ${when.agentId}`, asked.value]);
  const heard = useRef(mark);
  useEffect(() => {
    if (heard.current !== mark) soon.current();
    heard.current = mark;
  }, [mark]);
  return { data, error, reload: () => (asked.value += 1), askSoon: () => soon.current() };
}

// Asks again and again, for as long as somebody looks.

import { useEffect, useSignal } from "../html.js";
import { ApiError } from "./api.js";

const LONGEST_PAUSE_MS = 5000;

/**
 * What `load` gives, kept fresh. A tab that nobody sees asks nothing; two requests are never under way at once.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {number} everyMs between the end of one request and the next; 0: ask once
 * @param {unknown[]} deps a change begins anew
 * @returns {{data: import("../html.js").Signal<T | undefined>, error: import("../html.js").Signal<Error | null>,
 *   reload: () => void}} `data` stays what it was while `error` says why there is nothing newer
 */
export function usePolled(load, everyMs, deps) {
  const data = useSignal(/** @type {T | undefined} */ (undefined));
  const error = useSignal(/** @type {Error | null} */ (null));
  const asked = useSignal(0);
  useEffect(() => {
    const ending = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let isAsking = false;
    let pause = everyMs;
    const ask = async () => {
      clearTimeout(timer);
      if (isAsking || ending.signal.aborted || document.hidden) return;
      isAsking = true;
      try {
        const found = await load(ending.signal);
        if (ending.signal.aborted) return;
        data.value = found;
        error.value = null;
        pause = everyMs;
      } catch (thrown) {
        if (ending.signal.aborted) return;
        error.value = thrown instanceof Error ? thrown : new Error(String(thrown));
        // A server that is away or says that it is asked too often is asked less and less often.
        const told = thrown instanceof ApiError ? (thrown.retryAfter ?? 0) * 1000 : 0;
        pause = Math.max(told, Math.min(pause * 2, LONGEST_PAUSE_MS));
      } finally {
        isAsking = false;
        if (everyMs > 0 && !ending.signal.aborted) timer = setTimeout(ask, pause);
      }
    };
    ask();
    document.addEventListener("visibilitychange", ask);
    return () => {
      ending.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", ask);
    };
  }, [...deps, asked.value]);
  return { data, error, reload: () => (asked.value += 1) };
}

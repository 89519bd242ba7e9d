// Whether somebody sees the tab. A browser opens six connections to one server for all its tabs together, so a tab that
// nobody sees must not keep any.

/**
 * Does `work` while the tab is seen: it is ended when the tab is hidden, and begins again when the tab is seen again.
 * Returns when `work` does, and throws what it throws, and why `signal` ended.
 * @param {(signal: AbortSignal) => Promise<void>} work ends with its signal
 * @param {AbortSignal} signal
 */
export async function whileSeen(work, signal) {
  for (;;) {
    await untilSeen(signal);
    const leaving = new AbortController();
    const look = () => document.hidden && leaving.abort();
    document.addEventListener("visibilitychange", look);
    try {
      await work(AbortSignal.any([signal, leaving.signal]));
      return;
    } catch (thrown) {
      if (signal.aborted || !leaving.signal.aborted) throw thrown;
    } finally {
      document.removeEventListener("visibilitychange", look);
    }
  }
}

/** A tab that nobody sees draws nothing, and must not keep all that has come until then. */
const HIDDEN_MS = 250;

/**
 * Gives what asks for `draw`, which is called once per drawn frame, however much has come.
 * @param {() => void} draw
 * @param {AbortSignal} signal
 * @returns {() => void}
 */
export function oncePerFrame(draw, signal) {
  let isAsked = false;
  const now = () => {
    isAsked = false;
    if (!signal.aborted) draw();
  };
  return () => {
    if (isAsked) return;
    isAsked = true;
    if (document.hidden) setTimeout(now, HIDDEN_MS);
    else requestAnimationFrame(now);
  };
}

/**
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
async function untilSeen(signal) {
  signal.throwIfAborted();
  if (!document.hidden) return;
  await new Promise((resolve, reject) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      if (signal.aborted) reject(signal.reason);
      else resolve(undefined);
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
  });
}

// Whether the tab is visible. A browser opens six connections to one server for all its tabs together, so a hidden tab
// must not keep any.

/**
 * Does `work` while the tab is visible: hiding the tab ends it, and showing the tab begins it again. Returns when `work`
 * does, and throws the errors of `work` and the reason of `signal`.
 * @param {(signal: AbortSignal) => Promise<void>} work must end with its signal
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

/** A hidden tab draws nothing, and must not keep everything that arrives meanwhile. */
const HIDDEN_MS = 250;

/**
 * Returns a function that requests `draw`, which is called once per drawn frame, however many requests there are.
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

// The rows of the Runs page: one unbroken piece of the list from the newest run down, as far as the reader has scrolled.
// The newest page and the visible page are requested again when a run has changed.

import { useEffect, useRef, useSignal } from "../html.js";
import { request } from "./api.js";
import { usePolled } from "./polling.js";

const PAGE = 100;

/**
 * @typedef {{rows: any[], isWhole: boolean}} Piece the list from its newest run down; `isWhole`: to its end
 * @typedef {Piece & {asked: string, wanted: number}} Listed `asked`: the filters of these runs; `wanted`: the number
 *   of kept rows, which grows as the reader scrolls, but not with new runs
 */

/**
 * @param {Record<string, string>} filters parameters of `GET /v1/runs`
 * @returns {{rows: any[] | undefined, error: Error | null, hasMore: boolean, loadMore: () => void, reload: () => void,
 *   look: (first: number, last: number) => void}} newest first; undefined until the first answer. `look` gets the
 *   visible rows
 */
export function useRunList(filters) {
  const asked = JSON.stringify(filters);
  const kept = useSignal(/** @type {Listed | null} */ (null));
  const failure = useSignal(/** @type {Error | null} */ (null));
  const inSight = useRef({ first: 0, last: 0 });
  const loading = useRef(/** @type {AbortController | null} */ (null));
  const current = () => (kept.peek()?.asked === asked ? kept.peek() : null);
  const pageAfter = (/** @type {string | undefined} */ after, /** @type {AbortSignal} */ signal) =>
    request("GET", "/v1/runs", { query: { ...filters, limit: PAGE, after }, signal });
  /** @param {Piece} piece @param {number} wanted */
  const keep = (piece, wanted) => {
    const isCut = piece.rows.length > wanted;
    kept.value = { asked, wanted, rows: piece.rows.slice(0, wanted), isWhole: piece.isWhole && !isCut };
  };
  /** @param {AbortSignal} signal */
  const refresh = async (signal) => {
    const newest = await newestRuns(current(), (after) => pageAfter(after, signal));
    if (signal.aborted) return;
    keep(withPage(current(), null, newest.rows, newest.isWhole), current()?.wanted ?? PAGE);
    const { first, last } = inSight.current;
    const before = current()?.rows[Math.max(first, newest.rows.length) - 1];
    if (before === undefined || last <= newest.rows.length) return;
    const page = await pageAfter(before.id, signal);
    if (!signal.aborted) keep(withPage(current(), before.id, page, page.length < PAGE), current()?.wanted ?? PAGE);
  };
  // A key of single agents may follow these agents, but not the project.
  const polled = usePolled(refresh, { agentId: filters.agent_id || null }, [asked]);
  useEffect(() => {
    failure.value = null;
    inSight.current = { first: 0, last: 0 };
    // Answers for other filters must not get into this list.
    return () => {
      loading.current?.abort();
      loading.current = null;
    };
  }, [asked]);

  const loadMore = async () => {
    const last = current()?.rows.at(-1);
    if (loading.current !== null || last === undefined || current()?.isWhole) return;
    const ending = new AbortController();
    loading.current = ending;
    try {
      const page = await pageAfter(last.id, ending.signal);
      const now = current();
      if (ending.signal.aborted || now === null) return;
      keep(withPage(now, last.id, page, page.length < PAGE), now.wanted + PAGE);
      failure.value = null;
    } catch (thrown) {
      if (!ending.signal.aborted) failure.value = thrown instanceof Error ? thrown : new Error(String(thrown));
    } finally {
      if (loading.current === ending) loading.current = null;
    }
  };
  const reload = () => {
    if (failure.peek() !== null) loadMore();
    polled.reload();
  };
  const listed = kept.value?.asked === asked ? kept.value : null;
  return {
    rows: listed?.rows,
    error: polled.error.value ?? failure.value,
    hasMore: listed !== null && !listed.isWhole,
    loadMore,
    reload,
    look: (first, last) => {
      const isNew = first !== inSight.current.first || last !== inSight.current.last;
      inSight.current = { first, last };
      // Runs may have changed while their rows were out of sight.
      if (isNew && last > PAGE) polled.askSoon();
    },
  };
}

/**
 * The newest runs, down to a known run, because more than a page of runs may be new since the last answer. At most as many
 * as are kept.
 * @param {Listed | null} known
 * @param {(after: string | undefined) => Promise<any[]>} pageAfter
 * @returns {Promise<Piece>}
 */
async function newestRuns(known, pageAfter) {
  const ids = new Set(known?.rows.map((run) => run.id));
  const wanted = known?.wanted ?? PAGE;
  /** @type {any[]} */
  const rows = [];
  for (;;) {
    const page = await pageAfter(rows.at(-1)?.id);
    rows.push(...page);
    if (page.length < PAGE) return { rows, isWhole: true };
    if (rows.length >= wanted || page.some((run) => ids.has(run.id))) return { rows, isWhole: false };
  }
}

/**
 * The list with the page of rows after the row `after` (null: the newest rows). Between its first and its last row a page
 * has all rows that fit the filters by now: a known row that it lacks there no longer fits.
 * @param {Piece | null} known
 * @param {string | null} after
 * @param {any[]} page
 * @param {boolean} isEnd nothing follows on the page
 * @returns {Piece}
 */
export function withPage(known, after, page, isEnd) {
  const rows = known?.rows ?? [];
  const place = after === null ? 0 : rows.findIndex((run) => run.id === after) + 1;
  // The row has left the list during the request.
  if (after !== null && place === 0) return { rows, isWhole: known?.isWhole ?? false };
  const ids = new Set(page.map((run) => run.id));
  const meets = rows.findLastIndex((run) => ids.has(run.id));
  const before = rows.slice(0, place);
  if (isEnd) return { rows: [...before, ...page], isWhole: true };
  // If the page does not overlap known rows, the rows in between are unknown, so the known ones are requested again.
  if (meets < place) return { rows: [...before, ...page], isWhole: false };
  return { rows: [...before, ...page, ...rows.slice(meets + 1)], isWhole: known?.isWhole ?? false };
}

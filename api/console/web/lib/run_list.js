// The rows of the Runs page: pages by cursor, the newest ones kept fresh, and rows further down that have not ended.

import { useEffect, useRef, useSignal } from "../html.js";
import { request } from "./api.js";
import { usePolled } from "./polling.js";

/** A status change shows within a second. */
const EVERY_MS = 700;
const PAGE = 100;
/** Rows further down than the newest page that are asked for one by one, since they have not ended. */
const MOST_ASKED = 10;

/**
 * @param {Record<string, string>} filters parameters of `GET /v1/runs`
 * @returns {{rows: any[] | undefined, error: Error | null, hasMore: boolean, loadMore: () => void, reload: () => void}}
 *   newest first; undefined until the first answer
 */
export function useRunList(filters) {
  const asked = JSON.stringify(filters);
  const older = useSignal(/** @type {any[]} */ ([]));
  const hasMore = useSignal(true);
  const failure = useSignal(/** @type {Error | null} */ (null));
  const isLoading = useRef(false);
  const newest = usePolled((signal) => request("GET", "/v1/runs", { query: { ...filters, limit: PAGE }, signal }), EVERY_MS, [asked]);
  useEffect(() => {
    newest.data.value = undefined;
    older.value = [];
    hasMore.value = true;
    failure.value = null;
  }, [asked]);

  useRefreshed(older, asked);
  const first = newest.data.value ?? [];
  const seen = new Set(first.map((/** @type {any} */ run) => run.id));
  // A run that was running when its page was loaded may have ended since.
  const fits = (/** @type {any} */ run) => !filters.statuses || run.status === filters.statuses;
  const rows = [...first, ...older.value.filter((run) => !seen.has(run.id) && fits(run))];
  // What moves out of the newest page, since new runs came above it, must not vanish from the table.
  useEffect(() => {
    if (older.value.length === 0) return;
    const known = new Set(older.value.map((run) => run.id));
    const missing = first.filter((/** @type {any} */ run) => !known.has(run.id));
    if (missing.length > 0) older.value = [...missing, ...older.value];
  }, [newest.data.value]);

  const loadMore = async () => {
    const last = rows.at(-1);
    if (isLoading.current || !hasMore.value || last === undefined || first.length < PAGE) return;
    isLoading.current = true;
    try {
      const page = await request("GET", "/v1/runs", { query: { ...filters, limit: PAGE, after: last.id } });
      hasMore.value = page.length === PAGE;
      const known = older.value.length === 0 ? first : older.value;
      const ids = new Set(known.map((/** @type {any} */ run) => run.id));
      older.value = [...known, ...page.filter((/** @type {any} */ run) => !ids.has(run.id))];
      failure.value = null;
    } catch (thrown) {
      failure.value = thrown instanceof Error ? thrown : new Error(String(thrown));
    } finally {
      isLoading.current = false;
    }
  };
  return {
    rows: newest.data.value === undefined ? undefined : rows,
    error: newest.error.value ?? failure.value,
    hasMore: hasMore.value && first.length === PAGE,
    loadMore,
    reload: newest.reload,
  };
}

/**
 * Asks for the rows that have not ended, one by one.
 * @param {import("../html.js").Signal<any[]>} rows
 * @param {string} asked
 */
function useRefreshed(rows, asked) {
  usePolled(
    async (signal) => {
      const open = rows.peek().filter((run) => run.status === "created" || run.status === "running");
      const found = await Promise.all(
        open.slice(0, MOST_ASKED).map((run) => request("GET", `/v1/runs/${run.id}`, { signal })),
      );
      if (found.length === 0) return;
      const fresh = new Map(found.map((run) => [run.id, run]));
      rows.value = rows.peek().map((run) => fresh.get(run.id) ?? run);
    },
    2 * EVERY_MS,
    [asked],
  );
}

// A list of the API, one page at a time, kept fresh. The cursor is the id of a page's last row, so the millionth page
// costs as much as the first.

import { useState } from "../html.js";
import { request } from "./api.js";
import { usePolled } from "./polling.js";

/**
 * One page of the list at `path`. Another query begins at the first page again.
 * @template Row
 * @param {string} path
 * @param {Record<string, unknown>} query
 * @param {{size: number, when: number | import("./polling.js").Runs, idOf: (row: Row) => string}} options `when` as in
 *   `usePolled`; `idOf`: a row's cursor
 * @returns {{rows: Row[] | undefined, error: Error | null, reload: () => void, page: number,
 *   next: (() => void) | null, back: (() => void) | null, first: (() => void) | null}} `rows` is undefined until the
 *   first answer; `next` and `back` are null without such a page, and `first` is null on the first page
 */
export function usePaged(path, query, { size, when, idOf }) {
  const asked = JSON.stringify([path, query]);
  const [place, setPlace] = useState({ asked, cursors: /** @type {string[]} */ ([]) });
  const cursors = place.asked === asked ? place.cursors : [];
  const after = cursors.at(-1);
  // One row more than is shown reveals whether there is a next page.
  const load = async (/** @type {AbortSignal} */ signal) => ({
    asked: `${asked} ${after}`,
    found: await request("GET", path, { query: { ...query, limit: size + 1, after }, signal }),
  });
  const { data, error, reload } = usePolled(load, when, [asked, after]);
  // Rows of another page or filter are not shown under this one's name.
  const isOfThis = data.value?.asked === `${asked} ${after}`;
  /** @type {Row[] | undefined} */
  const found = isOfThis ? data.value?.found : undefined;
  const rows = found?.slice(0, size);
  const last = rows?.at(-1);
  const hasNext = found !== undefined && last !== undefined && found.length > size;
  return {
    rows,
    error: error.value,
    reload,
    page: cursors.length + 1,
    next: hasNext ? () => setPlace({ asked, cursors: [...cursors, idOf(last)] }) : null,
    back: cursors.length > 0 ? () => setPlace({ asked, cursors: cursors.slice(0, -1) }) : null,
    first: cursors.length > 0 ? () => setPlace({ asked, cursors: [] }) : null,
  };
}

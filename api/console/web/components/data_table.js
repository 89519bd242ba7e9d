// A table of any length. The page has only the visible rows. Arrow keys move the choice, Enter opens it.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";

/** @typedef {import("../html.js").ComponentChildren} Children */
/**
 * @template T
 * @typedef {{name: string, title: string, cell: (row: T) => Children, isFigure?: boolean}} Column
 */

const ROW_PX = 38;
const SPARE = 12;

/**
 * @template T
 * @param {{label: string, columns: Column<T>[], rows: T[], keyOf: (row: T) => string, onOpen?: (row: T) => void,
 *   onEnd?: () => void, onSight?: (first: number, last: number) => void}} props `onEnd`: the last rows are visible;
 *   `onSight`: the rows from `first` up to, without, `last` are visible
 */
export function DataTable({ label, columns, rows, keyOf, onOpen, onEnd, onSight }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [seen, setSeen] = useState({ top: 0, height: 600 });
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  const [said, setSaid] = useState("");
  const first = Math.max(0, Math.floor(seen.top / ROW_PX) - SPARE);
  const last = Math.min(rows.length, Math.ceil((seen.top + seen.height) / ROW_PX) + SPARE);

  const look = () => {
    const place = box.current;
    if (place) setSeen({ top: place.scrollTop, height: place.clientHeight });
  };
  useLayoutEffect(() => {
    look();
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  useEffect(() => {
    if (rows.length > 0 && last >= rows.length) onEnd?.();
  }, [last, rows.length]);
  useEffect(() => {
    onSight?.(first, last);
  }, [first, last]);
  // The focus stays on the table, so a screen reader would not read the row that the arrow keys choose.
  useEffect(() => {
    const cells = box.current?.querySelectorAll("tr[aria-current] td") ?? [];
    setSaid(Array.from(cells, (cell) => /** @type {HTMLElement} */ (cell).innerText.trim()).filter(Boolean).join(", "));
  }, [chosen]);

  /** @param {number} index */
  const choose = (index) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, index))];
    const place = box.current;
    if (row === undefined || !place) return;
    setChosen(keyOf(row));
    const top = Math.max(0, Math.min(rows.length - 1, index)) * ROW_PX;
    if (top < place.scrollTop) place.scrollTop = top;
    else if (top + 2 * ROW_PX > place.scrollTop + place.clientHeight) place.scrollTop = top + 2 * ROW_PX - place.clientHeight;
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (event.target !== box.current) return;
    const at = rows.findIndex((row) => keyOf(row) === chosen);
    const page = Math.max(1, Math.floor(seen.height / ROW_PX) - 1);
    /** @type {Record<string, number>} */
    const moves = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), Home: 0, End: rows.length - 1, PageDown: at + page, PageUp: at - page };
    if (event.key in moves) {
      event.preventDefault();
      choose(moves[event.key]);
    } else if (event.key === "Enter" && at >= 0) {
      onOpen?.(rows[at]);
    }
  };
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label=${`${label}. Arrow keys choose a row, Enter opens it.`} ref=${box}
      onScroll=${look} onKeyDown=${onKeyDown}>
      <table aria-rowcount=${rows.length + 1}>
        <thead>
          <tr>${columns.map((one) => html`<th scope="col" class=${one.isFigure ? "figure" : ""}>${one.title}</th>`)}</tr>
        </thead>
        <tbody>
          ${first > 0 && html`<tr class="spacer" aria-hidden="true" style=${{ height: `${first * ROW_PX}px` }}><td colspan=${columns.length}></td></tr>`}
          ${rows.slice(first, last).map((row, offset) => {
            const id = keyOf(row);
            return html`
              <tr key=${id} class=${onOpen ? "opens" : ""} aria-rowindex=${first + offset + 2} data-key=${id}
                aria-current=${id === chosen ? "true" : undefined} onClick=${() => (setChosen(id), onOpen?.(row))}>
                ${columns.map((one) => html`<td data-column=${one.name} class=${one.isFigure ? "figure" : ""}>${one.cell(row)}</td>`)}
              </tr>
            `;
          })}
          ${last < rows.length && html`<tr class="spacer" aria-hidden="true" style=${{ height: `${(rows.length - last) * ROW_PX}px` }}><td colspan=${columns.length}></td></tr>`}
        </tbody>
      </table>
    </div>
    <span class="for-readers" role="status">${said}</span>
  `;
}

// The buttons to a list's next page and back.

import { html } from "../html.js";
import { Empty } from "./basics.js";

/** @param {{page: number, next: (() => void) | null, back: (() => void) | null, of: string}} props `of`: its rows */
export function Pager({ page, next, back, of }) {
  if (next === null && back === null) return null;
  return html`<nav class="pager" aria-label=${`Pages of ${of}`}>
    <button disabled=${back === null} onClick=${back ?? undefined}>Previous page</button>
    <span>Page ${page}</span>
    <button disabled=${next === null} onClick=${next ?? undefined}>Next page</button>
  </nav>`;
}

/**
 * A later page that is empty by now, and the buttons back to the pages with rows.
 * @param {{page: number, next: (() => void) | null, back: (() => void) | null, first: (() => void) | null, of: string,
 *   why: string}} props `why`: the reason why its rows are gone
 */
export function EmptyPage({ page, next, back, first, of, why }) {
  return html`<${Empty} title="Nothing is left on this page">
      <p>${why}</p>
      <p><button type="button" class="main-button" onClick=${first ?? undefined}>Go to the first page</button></p>
    <//>
    <${Pager} page=${page} next=${next} back=${back} of=${of} />`;
}

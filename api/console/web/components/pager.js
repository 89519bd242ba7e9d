// The way to a list's next page and back.

import { html } from "../html.js";

/** @param {{page: number, next: (() => void) | null, back: (() => void) | null, of: string}} props `of`: of what */
export function Pager({ page, next, back, of }) {
  if (next === null && back === null) return null;
  return html`<nav class="pager" aria-label=${`Pages of ${of}`}>
    <button disabled=${back === null} onClick=${back ?? undefined}>Previous page</button>
    <span>Page ${page}</span>
    <button disabled=${next === null} onClick=${next ?? undefined}>Next page</button>
  </nav>`;
}

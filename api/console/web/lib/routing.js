// The page in the URL: the part behind `#`, which no server sees. It has the filters, so a link keeps them.

import { computed, signal } from "../html.js";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

/** The path behind `#`, without its query: "/runs/run-1". */
export const path = computed(() => hash.value.slice(1).split("?")[0] || "/runs");

/** @type {import("../html.js").ReadonlySignal<Record<string, string>>} the parameters behind the path's question mark */
export const query = computed(() => Object.fromEntries(new URLSearchParams(hash.value.split("?")[1] ?? "")));

/**
 * The address of a page.
 * @param {string} to "/runs"
 * @param {Record<string, string | number | null | undefined>} [filters] empty filters are omitted
 */
export function href(to, filters = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(filters)) {
    if (value !== null && value !== undefined && value !== "") found.set(name, String(value));
  }
  const text = found.toString();
  return `#${to}${text === "" ? "" : `?${text}`}`;
}

/**
 * Shows another page.
 * @param {string} to
 * @param {Record<string, string | number | null | undefined>} [filters]
 */
export function go(to, filters) {
  location.hash = href(to, filters);
}

/**
 * Changes the filters of the present page, without a new entry in the browser's history.
 * @param {Record<string, string | number | null | undefined>} filters
 */
export function refine(filters) {
  history.replaceState(null, "", href(path.value, { ...query.value, ...filters }));
  hash.value = location.hash;
}

// The API key of the person at the page. It is kept in memory and in the tab's session storage, never in a URL, a cookie
// or storage that outlives the tab.

import { signal } from "../html.js";

const KEY = "holdfast.key";

/** The key of all requests; "" without a key. */
export const key = signal(sessionStorage.getItem(KEY) ?? "");

/** The server has refused a request without a valid key: the panel that asks for one is open. */
export const needsKey = signal(false);

/** The server's reason for refusing the key; "" before. */
export const keyRefusal = signal("");

/**
 * Uses this key for every later request.
 * @param {string} given
 */
export function signIn(given) {
  key.value = given.trim();
  sessionStorage.setItem(KEY, key.value);
  needsKey.value = false;
  keyRefusal.value = "";
}

/** Forgets the key. */
export function signOut() {
  key.value = "";
  sessionStorage.removeItem(KEY);
  needsKey.value = true;
  keyRefusal.value = "";
}

/**
 * Records that the server has answered 401.
 * @param {string} said the server's reason
 */
export function noteRefusal(said) {
  keyRefusal.value = key.value === "" ? "" : said;
  needsKey.value = true;
}

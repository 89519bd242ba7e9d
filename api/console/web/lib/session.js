// The API key of whoever looks. It is kept in memory and in the tab's session storage, never in a URL, a cookie or
// storage that outlives the tab.

import { signal } from "../html.js";

const KEY = "holdfast.key";

/** The key that requests are sent with; "" where none was given. */
export const key = signal(sessionStorage.getItem(KEY) ?? "");

/** The server has refused a request without a valid key: the panel that asks for one is open. */
export const needsKey = signal(false);

/** What the server said when it refused the key; "" before. */
export const keyRefusal = signal("");

/**
 * Sends every later request with this key.
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
 * The server has answered 401.
 * @param {string} said what it said
 */
export function noteRefusal(said) {
  keyRefusal.value = key.value === "" ? "" : said;
  needsKey.value = true;
}

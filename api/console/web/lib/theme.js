// Dark or light: as the system says, until the reader chooses.

import { effect, signal } from "../html.js";

const THEME = "holdfast.theme";

/** @typedef {"system" | "light" | "dark"} Theme */

/** What the reader chose. */
export const theme = signal(/** @type {Theme} */ (localStorage.getItem(THEME) ?? "system"));

effect(() => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(THEME, theme.value);
});

// Dark or light: the system's setting, until the reader chooses.

import { effect, signal } from "../html.js";

const THEME = "holdfast.theme";

/** @typedef {"system" | "light" | "dark"} Theme */

/** The reader's choice. */
export const theme = signal(/** @type {Theme} */ (localStorage.getItem(THEME) ?? "system"));

effect(() => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(THEME, theme.value);
});

// Figures and times as people read them.

const NUMBER = new Intl.NumberFormat("en");
const DAY_MS = 86_400_000;
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** The text for a missing figure. */
export const NOTHING = "–";

/**
 * @param {number | null | undefined} ms
 * @returns {string} "340 ms", "4.2 s", "3 min 5 s", "2 h 10 min"
 */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return NOTHING;
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/**
 * @param {number | null | undefined} value
 * @returns {string} "12,345"
 */
export function number(value) {
  return value === null || value === undefined || Number.isNaN(value) ? NOTHING : NUMBER.format(value);
}

/**
 * @param {number | null | undefined} value
 * @returns {string} "1.4 MB"
 */
export function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? size : size.toFixed(1)} ${UNITS[unit]}`;
}

/**
 * A time of the API.
 * @param {string | null | undefined} text
 * @returns {Date | null}
 */
export function moment(text) {
  if (!text) return null;
  const found = new Date(text);
  return Number.isNaN(found.getTime()) ? null : found;
}

/**
 * @param {Date | null} when
 * @param {Date} [now]
 * @returns {string} the time in the reader's time zone, with the day if it is not today
 */
export function time(when, now = new Date()) {
  if (when === null) return NOTHING;
  const clock = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const isToday = Math.abs(now.getTime() - when.getTime()) < DAY_MS && now.getDate() === when.getDate();
  return isToday ? clock : `${when.toLocaleDateString([], { day: "numeric", month: "short" })}, ${clock}`;
}

/**
 * @param {string} id
 * @returns {string} enough of an id to tell it from its neighbours
 */
export function shortId(id) {
  const [prefix, ...rest] = id.split("-");
  return rest.length === 0 ? id : `${prefix}-${rest.join("-").slice(0, 8)}`;
}

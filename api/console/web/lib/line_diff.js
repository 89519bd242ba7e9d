// The lines that two texts share, in order, and the lines that only one text has. Long texts are compared coarsely.

/** @typedef {{kind: "same" | "removed" | "added", text: string}} DiffLine */

// The table of common lines is quadratic: a million cells are a few milliseconds.
const MOST_LINES = 1000;

/**
 * The lines of both texts, as the changes from `before` to `after`.
 * @param {string} before
 * @param {string} after
 * @returns {DiffLine[]}
 */
export function lineDiff(before, after) {
  const [old, next] = [before.split("\n"), after.split("\n")];
  const start = sharedStart(old, next);
  const end = sharedEnd(old.slice(start), next.slice(start));
  const oldMiddle = old.slice(start, old.length - end);
  const newMiddle = next.slice(start, next.length - end);
  const isShort = oldMiddle.length <= MOST_LINES && newMiddle.length <= MOST_LINES;
  const coarse = () => [...lines("removed", oldMiddle), ...lines("added", newMiddle)];
  const middle = isShort ? compared(oldMiddle, newMiddle) : coarse();
  return [...lines("same", old.slice(0, start)), ...middle, ...lines("same", old.slice(old.length - end))];
}

/** @param {DiffLine["kind"]} kind @param {string[]} texts @returns {DiffLine[]} */
function lines(kind, texts) {
  return texts.map((text) => ({ kind, text }));
}

/** @param {string[]} one @param {string[]} other */
function sharedStart(one, other) {
  let length = 0;
  while (length < one.length && length < other.length && one[length] === other[length]) length += 1;
  return length;
}

/** @param {string[]} one @param {string[]} other */
function sharedEnd(one, other) {
  return sharedStart([...one].reverse(), [...other].reverse());
}

/** @param {string[]} old @param {string[]} next @returns {DiffLine[]} */
function compared(old, next) {
  const common = commonLengths(old, next);
  /** @type {DiffLine[]} */
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < next.length) {
    if (i < old.length && j < next.length && old[i] === next[j]) {
      found.push({ kind: "same", text: old[i] });
      [i, j] = [i + 1, j + 1];
    } else if (j === next.length || (i < old.length && common[i + 1][j] >= common[i][j + 1])) {
      found.push({ kind: "removed", text: old[i] });
      i += 1;
    } else {
      found.push({ kind: "added", text: next[j] });
      j += 1;
    }
  }
  return found;
}

/**
 * For each pair of places: the number of lines that the two texts share from there to their ends.
 * @param {string[]} old
 * @param {string[]} next
 */
function commonLengths(old, next) {
  const table = Array.from({ length: old.length + 1 }, () => new Uint16Array(next.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = next.length - 1; j >= 0; j -= 1) {
      table[i][j] = old[i] === next[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  return table;
}

// The parts of a run's time, as bars under each other.

import { html, useEffect, useState } from "../html.js";
import { duration } from "../lib/format.js";
import { spansOf } from "../lib/waterfall.js";

/** The most spans to draw: the longest ones. */
const MOST = 200;

/**
 * @param {{timeline: import("../lib/waterfall.js").Timeline, startedAt: number | null, endedAt: number | null}} props
 *   `endedAt`: Unix ms; null while the run goes on, or waits for a person
 */
export function Waterfall({ timeline, startedAt, endedAt }) {
  const isLive = endedAt === null;
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isLive) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [isLive]);
  const all = spansOf(timeline, startedAt);
  if (all.length === 0) return null;
  const isOpen = all.some((span) => span.to === null);
  const from = Math.min(...all.map((span) => span.from));
  // The log of a run that was cancelled while it waited for a person ends with the approval request.
  const to = Math.max(timeline.last ?? from, isOpen ? (endedAt ?? now) : 0, from + 1);
  const spans = all.length <= MOST ? all : longest(all, now);
  return html`
    <section class="panel" aria-labelledby="waterfall-title">
      <h2 id="waterfall-title">Where the time went</h2>
      ${spans.length < all.length && html`<p class="note">The ${MOST} longest of ${all.length}.</p>`}
      <ol class="waterfall" tabindex="0" aria-labelledby="waterfall-title">
        ${spans.map((span) => {
          const end = span.to ?? to;
          const place = { left: `${percent(span.from, from, to)}%`, width: `${percent(end, span.from, span.from + (to - from))}%` };
          return html`
            <li key=${`${span.kind}${span.seq}${span.label}${span.from}`} data-span=${span.kind}>
              <span>${span.label}</span>
              <span class="track" aria-hidden="true"><span class=${`bar bar-${span.kind}`} style=${place}></span></span>
              <span class="figure">${duration(end - span.from)}</span>
            </li>
          `;
        })}
      </ol>
    </section>
  `;
}

/**
 * @param {number} at
 * @param {number} from
 * @param {number} to
 */
function percent(at, from, to) {
  return Math.max(0, Math.min(100, ((at - from) / (to - from)) * 100));
}

/**
 * @param {import("../lib/waterfall.js").Span[]} spans
 * @param {number} now
 */
function longest(spans, now) {
  const length = (/** @type {import("../lib/waterfall.js").Span} */ span) => (span.to ?? now) - span.from;
  const kept = new Set([...spans].sort((one, other) => length(other) - length(one)).slice(0, MOST));
  return spans.filter((span) => kept.has(span));
}

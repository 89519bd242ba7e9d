// The time until a moment, counted down once a second.

import { html, useEffect, useState } from "../html.js";

const SECOND = 1000;

/** @param {{until: string}} props an ISO time */
export function Countdown({ until }) {
  const end = Date.parse(until);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), SECOND);
    return () => clearInterval(timer);
  }, [until]);
  // It is not a live region: a screen reader would read nothing else.
  return html`<time dateTime=${until} title=${new Date(end).toLocaleString()} class="countdown">
    ${end <= now ? "time is over" : `in ${left(end - now)}`}
  </time>`;
}

/** @param {number} milliseconds */
function left(milliseconds) {
  const seconds = Math.ceil(milliseconds / SECOND);
  const [days, hours] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24];
  const minutes = Math.floor(seconds / 60) % 60;
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

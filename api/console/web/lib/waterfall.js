// The parts of a run's time, folded from its log: waiting, the model's first token, streaming, tools, people.

/** @typedef {import("./server_sent_events.js").Frame} Frame */
/**
 * @typedef {"wait" | "first" | "stream" | "tool" | "person" | "lost"} SpanKind
 * @typedef {{kind: SpanKind, label: string, from: number, to: number | null, seq: number}} Span Unix ms; `to` is null
 *   while it goes on
 */
/**
 * @typedef {{spans: Span[], stepId: string | null, boundary: number | null, last: number | null,
 *   calls: Map<string, {name: string, at: number}>, isClaimed: boolean}} Timeline `boundary`: the time when the model's
 *   input was complete; `last`: the time of the last frame
 */

const OF_MODELS = new Set(["assistant_message", "reasoning_message", "tool_call_message", "approval_request_message"]);

/** @returns {Timeline} */
export function emptyTimeline() {
  return { spans: [], stepId: null, boundary: null, last: null, calls: new Map(), isClaimed: false };
}

/**
 * The timeline with one more frame; the given one must not be used again. Frames of a continuation follow those of its run.
 * @param {Timeline} timeline
 * @param {Frame} frame
 * @returns {Timeline}
 */
export function addToTimeline(timeline, { seq, data }) {
  if (data === null) return ended(timeline);
  const at = momentOf(data);
  if (at === null || data.message_type === "ping") return timeline;
  const next = { ...timeline };
  if (data.message_type === "run_status") status(next, data, at, seq);
  else if (OF_MODELS.has(data.message_type)) answered(next, data, at, seq);
  else if (data.message_type === "tool_return_message") returned(next, data, at, seq);
  else if (data.message_type === "event_message") interrupted(next, data, at, seq);
  next.last = Math.max(next.last ?? at, at);
  return next;
}

/**
 * The spans to draw. The log does not have the time of the claim, so the first wait ends at the run's own time.
 * @param {Timeline} timeline
 * @param {number | null} startedAt Unix ms, of the first run of the chain; null if unknown
 * @returns {Span[]}
 */
export function spansOf(timeline, startedAt) {
  const [wait, first] = timeline.spans;
  if (wait?.kind !== "wait") return timeline.spans;
  if (startedAt !== null && startedAt >= wait.from) {
    const begun = { ...wait, to: startedAt };
    return first?.kind === "first"
      ? [begun, { ...first, from: Math.min(startedAt, first.to ?? startedAt) }, ...timeline.spans.slice(2)]
      : [begun, ...timeline.spans.slice(1)];
  }
  if (first?.kind !== "first") return timeline.spans;
  return [{ ...first, from: wait.from, label: "Waiting, and the model's first token" }, ...timeline.spans.slice(2)];
}

/**
 * Unix ms of the first piece of an answer, even if it is void by now: the run itself has it once a step is stored. Null
 * before the first piece.
 * @param {Timeline} timeline of a log from its beginning
 */
export function firstPieceAt(timeline) {
  return timeline.spans.find((span) => span.kind === "first")?.to ?? null;
}

/** @param {any} data */
function momentOf(data) {
  if (typeof data.at_ms === "number") return data.at_ms;
  const found = Date.parse(data.date ?? "");
  return Number.isNaN(found) ? null : found;
}

/**
 * @param {Timeline} timeline
 * @param {any} data
 * @param {number} at
 * @param {number} seq
 */
function status(timeline, data, at, seq) {
  if (data.status !== "created") return;
  close(timeline, at, ["person", "stream"]);
  timeline.boundary = at;
  timeline.stepId = null;
  const isFirst = timeline.spans.length === 0;
  if (isFirst) timeline.spans.push({ kind: "wait", label: "Waiting for a worker", from: at, to: null, seq });
}

/**
 * @param {Timeline} timeline
 * @param {any} data
 * @param {number} at
 * @param {number} seq
 */
function answered(timeline, data, at, seq) {
  const isNew = data.step_id !== null && data.step_id !== undefined && data.step_id !== timeline.stepId;
  if (isNew) {
    close(timeline, timeline.boundary ?? at, ["wait"]);
    close(timeline, at, ["stream"]);
    timeline.stepId = data.step_id;
    const from = timeline.boundary ?? at;
    timeline.spans.push({ kind: "first", label: "The model's first token", from, to: at, seq });
    timeline.spans.push({ kind: "stream", label: "The model's answer", from: at, to: null, seq });
  }
  const calls = Array.isArray(data.tool_calls) ? data.tool_calls : data.tool_call ? [data.tool_call] : [];
  for (const call of calls) {
    const name = call.name ?? timeline.calls.get(call.tool_call_id)?.name ?? "";
    timeline.calls.set(call.tool_call_id, { name, at });
  }
  const isAsked = timeline.spans.some((span) => span.kind === "person" && span.to === null);
  if (data.message_type === "approval_request_message" && !isAsked) {
    timeline.spans.push({ kind: "person", label: "Waiting for a person", from: at, to: null, seq });
  }
}

/**
 * @param {Timeline} timeline
 * @param {any} data
 * @param {number} at
 * @param {number} seq
 */
function returned(timeline, data, at, seq) {
  close(timeline, timeline.last ?? at, ["stream", "wait"]);
  for (const one of data.tool_returns ?? [data]) {
    const call = timeline.calls.get(one.tool_call_id);
    const from = Math.max(call?.at ?? timeline.boundary ?? at, lastEnd(timeline, "person"));
    const label = `Tool ${call?.name || data.name || ""}`.trim();
    timeline.spans.push({ kind: "tool", label, from: Math.min(from, at), to: at, seq });
    timeline.calls.delete(one.tool_call_id);
  }
  timeline.boundary = at;
}

/**
 * @param {Timeline} timeline
 * @param {any} data
 * @param {number} at
 * @param {number} seq
 */
function interrupted(timeline, data, at, seq) {
  if (data.event_type !== "step_restarted" && data.event_type !== "log_continued") return;
  const from = timeline.last ?? at;
  close(timeline, from, ["stream", "wait"]);
  const label = data.event_type === "step_restarted" ? "Worker lost, step begun again" : "Handed over to another worker";
  timeline.spans.push({ kind: "lost", label, from, to: at, seq });
  timeline.boundary = at;
  timeline.stepId = null;
}

/** @param {Timeline} timeline */
function ended(timeline) {
  const next = { ...timeline };
  if (next.last !== null) close(next, next.last, ["stream", "wait", "first"]);
  return next;
}

/**
 * @param {Timeline} timeline
 * @param {number} at
 * @param {SpanKind[]} kinds
 */
function close(timeline, at, kinds) {
  timeline.spans.forEach((span, position) => {
    const isOpen = span.to === null && kinds.includes(span.kind);
    if (isOpen) timeline.spans[position] = { ...span, to: Math.max(span.from, at) };
  });
}

/**
 * @param {Timeline} timeline
 * @param {SpanKind} kind
 */
function lastEnd(timeline, kind) {
  return timeline.spans.reduce((end, span) => (span.kind === kind ? Math.max(end, span.to ?? 0) : end), 0);
}

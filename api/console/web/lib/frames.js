// Folds the frames of a run's stream into items for a person: texts, reasoning, calls with their results, and events on
// the way. It makes no requests and draws nothing.

/** @typedef {import("./server_sent_events.js").Frame} Frame */
/**
 * A call of a tool. `result` is undefined until it arrives; `decision`: a person's decision, if it is known.
 * @typedef {{id: string, name: string, arguments: string, needsApproval: boolean, resultSeq?: number, result?: unknown,
 *   decision?: Record<string, any>, status?: string, stdout?: string[] | null, stderr?: string[] | null}} Call
 */
/**
 * @typedef {"text" | "reasoning" | "call" | "input" | "summary" | "compaction" | "gap" | "restarted" | "continued" |
 *   "status" | "error" | "leg"} Kind leg: another run continues the run, after an approval
 * @typedef {{kind: Kind, key: string, leg: number, seq: number, lastSeq: number, messageId: string | null, at: string | null,
 *   text: string, isVoid: boolean, pieces: Piece[], call?: Call, data?: Record<string, any>}} Item `isVoid`: it was shown,
 *   but its worker was lost before it was stored
 * @typedef {{seq: number, before: number}} Piece a frame's addition to the item's text, or to its call's arguments:
 *   `before` is the length before the addition
 */
/**
 * @typedef {{items: Item[], positions: Map<string, number>, runId: string | null, leg: number, lastSeq: number,
 *   usage: Record<string, any> | null, stopReason: string | null, error: Record<string, any> | null,
 *   hasEnded: boolean}} Transcript `leg`: the number of continued runs before the present run, to which the other fields
 *   except `items` belong
 */

/** @returns {Transcript} */
export function emptyTranscript() {
  return {
    items: [],
    positions: new Map(),
    runId: null,
    leg: 0,
    lastSeq: 0,
    usage: null,
    stopReason: null,
    error: null,
    hasEnded: false,
  };
}

/**
 * The transcript with one more frame. It reuses the list of the given one, which must not be used again, so that ten
 * thousand frames cost ten thousand steps. An item that changes is a new object. The frames of a continuation follow
 * those of its run.
 * @param {Transcript} transcript
 * @param {Frame} frame
 * @returns {Transcript}
 */
export function addFrame(transcript, { seq, data }) {
  const isNewLeg = Boolean(data?.run_id && transcript.runId && data.run_id !== transcript.runId);
  const next = isNewLeg ? newLeg(transcript, data, seq) : { ...transcript, lastSeq: Math.max(transcript.lastSeq, seq) };
  if (data === null) return { ...next, hasEnded: true };
  next.runId = data.run_id ?? next.runId;
  const add = ADDERS[data.message_type];
  // Frames of unknown types are only among the raw events.
  return add === undefined ? next : add(next, data, seq);
}

/**
 * @param {Transcript} transcript
 * @param {any} data
 * @param {number} seq
 * @returns {Transcript}
 */
function newLeg(transcript, data, seq) {
  const next = { ...emptyTranscript(), items: transcript.items, positions: transcript.positions };
  next.leg = transcript.leg + 1;
  next.lastSeq = seq;
  return put(next, { ...item(next, "leg", data, seq), text: data.run_id });
}

/** @type {Record<string, (transcript: Transcript, data: any, seq: number) => Transcript>} */
const ADDERS = {
  assistant_message: (into, data, seq) => withText(into, "text", data, seq, asText(data.content)),
  reasoning_message: (into, data, seq) => withText(into, "reasoning", data, seq, data.reasoning ?? ""),
  tool_call_message: withCalls,
  approval_request_message: withCalls,
  tool_return_message: withResults,
  user_message: (into, data, seq) => put(into, inputItem(into, data, seq)),
  summary_message: (into, data, seq) => put(into, { ...item(into, "summary", data, seq), text: data.summary ?? "" }),
  event_message: withEvent,
  run_status: (into, data, seq) =>
    data.status === "created" ? into : put(into, { ...item(into, "status", data, seq), text: data.status, data }),
  error_message: (into, data, seq) =>
    put({ ...into, error: data }, { ...item(into, "error", data, seq), text: data.message ?? "", data }),
  stop_reason: (into, data) => ({ ...into, stopReason: data.stop_reason }),
  usage_statistics: (into, data) => ({ ...into, usage: data }),
};

/**
 * @param {Transcript} into
 * @param {Kind} kind
 * @param {any} data
 * @param {number} seq
 * @returns {Item}
 */
function item(into, kind, data, seq) {
  return {
    kind,
    key: `${kind}:${data.run_id ?? ""}:${seq}`,
    leg: into.leg,
    seq,
    lastSeq: seq,
    messageId: data.id ?? null,
    at: data.date ?? null,
    text: "",
    isVoid: false,
    pieces: [],
  };
}

/**
 * Replaces the item with the same key, or appends the item.
 * @param {Transcript} into
 * @param {Item} one
 */
function put(into, one) {
  const position = into.positions.get(one.key);
  if (position === undefined) {
    into.positions.set(one.key, into.items.length);
    into.items.push(one);
  } else {
    into.items[position] = one;
  }
  return into;
}

/**
 * @param {Transcript} into
 * @param {string} key
 */
function found(into, key) {
  const position = into.positions.get(key);
  return position === undefined ? undefined : into.items[position];
}

/**
 * @param {Transcript} into
 * @param {"text" | "reasoning"} kind
 * @param {any} data
 * @param {number} seq
 * @param {string} text
 */
function withText(into, kind, data, seq, text) {
  const key = `${kind}:${data.id}:${data.otid}`;
  const known = found(into, key);
  const grown = known ?? { ...item(into, kind, data, seq), key };
  // Like the list of items, the list of pieces is reused by the item that replaces this one.
  grown.pieces.push({ seq, before: grown.text.length });
  return put(into, { ...grown, text: grown.text + text, lastSeq: seq });
}

/**
 * Pieces of a call, or whole calls.
 * @param {Transcript} into
 * @param {any} data
 * @param {number} seq
 */
function withCalls(into, data, seq) {
  const needsApproval = data.message_type === "approval_request_message";
  const calls = Array.isArray(data.tool_calls) ? data.tool_calls : [data.tool_call ?? data.tool_calls];
  for (const one of calls) {
    const known = openCall(into, one.tool_call_id);
    /** @type {Call} */
    const call = known?.call ?? { id: one.tool_call_id, name: "", arguments: "", needsApproval };
    const isWhole = Array.isArray(data.tool_calls);
    const grown = known ?? callItem(into, one.tool_call_id, data, seq);
    grown.pieces.push({ seq, before: call.arguments.length });
    putCall(into, {
      ...grown,
      lastSeq: seq,
      call: {
        ...call,
        name: one.name ?? call.name,
        arguments: isWhole ? (one.arguments ?? "") : call.arguments + (one.arguments ?? ""),
        needsApproval: call.needsApproval || needsApproval,
      },
    });
  }
  return into;
}

/**
 * @param {Transcript} into
 * @param {any} data
 * @param {number} seq
 */
function withResults(into, data, seq) {
  for (const one of data.tool_returns ?? [data]) {
    // The call of a continuation after an approval is in the previous run's log.
    const begun = openCall(into, one.tool_call_id) ?? callItem(into, one.tool_call_id, data, seq);
    /** @type {Call} */
    const call = begun.call ?? { id: one.tool_call_id, name: data.name ?? "", arguments: "", needsApproval: false };
    putCall(into, {
      ...begun,
      lastSeq: seq,
      call: { ...call, resultSeq: seq, result: one.tool_return, status: one.status, stdout: one.stdout, stderr: one.stderr },
    });
  }
  return into;
}

/**
 * @param {Transcript} into
 * @param {string} callId
 * @param {any} data
 * @param {number} seq
 * @returns {Item}
 */
function callItem(into, callId, data, seq) {
  return { ...item(into, "call", data, seq), key: `call:${callId}:${seq}` };
}

/**
 * The call with this id that waits for its result. Models may use an id twice, and so may a repeated step.
 * @param {Transcript} into
 * @param {string} callId
 */
function openCall(into, callId) {
  const last = found(into, `call:${callId}`);
  return last === undefined || last.isVoid || last.call?.result !== undefined ? undefined : last;
}

/**
 * @param {Transcript} into
 * @param {Item & {call: Call}} one
 */
function putCall(into, one) {
  put(into, one);
  into.positions.set(`call:${one.call.id}`, into.positions.get(one.key) ?? 0);
}

/**
 * @param {Transcript} into
 * @param {any} data
 * @param {number} seq
 */
function withEvent(into, data, seq) {
  const told = data.event_data ?? {};
  const isOwners = data.event_type === "step_restarted" || data.event_type === "log_continued";
  const voided = isOwners ? voidBehind(into, told.follows ?? seq, new Set(told.void_message_ids ?? [])) : 0;
  /** @type {Record<string, Kind>} */
  const kinds = { step_restarted: "restarted", log_continued: "continued", gap: "gap", compaction: "compaction" };
  const kind = kinds[data.event_type];
  return kind === undefined ? into : put(into, { ...item(into, kind, data, seq), data: { ...told, voided } });
}

/**
 * Voids the items that frames of this leg after the number `follows` have shown, and items of the messages `lost`.
 * @param {Transcript} into
 * @param {number} follows
 * @param {ReadonlySet<string | null>} lost
 * @returns {number} the number of these items
 */
function voidBehind(into, follows, lost) {
  let count = 0;
  for (const [position, one] of [...into.items].entries()) {
    const isBehind = one.leg === into.leg && one.lastSeq > follows;
    if (one.isVoid || !(isBehind || lost.has(one.messageId))) continue;
    count += 1;
    if (lost.has(one.messageId) || one.seq > follows) {
      into.items[position] = { ...one, isVoid: true };
    } else {
      const { kept, left } = partedBehind(one, follows);
      into.items[position] = kept;
      put(into, left);
    }
  }
  return count;
}

/**
 * Splits an item of which only the first frames were stored: `kept` is the valid part, `left` the void part.
 * @param {Item} one
 * @param {number} follows
 * @returns {{kept: Item, left: Item}}
 */
function partedBehind(one, follows) {
  const at = one.pieces.findIndex((piece) => piece.seq > follows);
  const before = at < 0 ? Infinity : one.pieces[at].before;
  const pieces = at < 0 ? one.pieces : one.pieces.slice(0, at);
  const left = { ...one, key: `${one.key}:void:${follows}`, seq: follows + 1, isVoid: true, text: one.text.slice(before) };
  const kept = { ...one, lastSeq: follows, pieces, text: one.text.slice(0, before) };
  if (one.call === undefined) return { kept, left };
  const { result, resultSeq, status, stdout, stderr, ...asked } = one.call;
  const hasResult = resultSeq !== undefined && resultSeq <= follows;
  const call = { ...(hasResult ? one.call : asked), arguments: asked.arguments.slice(0, before) };
  return { kept: { ...kept, call }, left };
}

/**
 * A message to a run while it worked, or the note with which a summary replaces old messages.
 * @param {Transcript} into
 * @param {any} data
 * @param {number} seq
 * @returns {Item}
 */
function inputItem(into, data, seq) {
  const text = asText(data.content);
  const packed = text.startsWith("{") ? unpacked(text) : null;
  if (packed?.type === "system_alert") {
    return { ...item(into, "summary", data, seq), text: packed.message ?? "", data: packed.compaction_stats ?? {} };
  }
  return { ...item(into, "input", data, seq), text, data: { otid: data.otid } };
}

/** @param {string} text */
function unpacked(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/**
 * The text of a content, which is a text or a list of parts.
 * @param {unknown} content
 * @returns {string}
 */
export function asText(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => (typeof part?.text === "string" ? part.text : `[${part?.type ?? "part"}]`)).join("");
}

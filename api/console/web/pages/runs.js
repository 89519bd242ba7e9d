// The project's runs, newest first, as they change.

import { html, useRef, useState } from "../html.js";
import { AgentFilter } from "../components/agent_filter.js";
import { DataTable } from "../components/data_table.js";
import { AgentName, Copy, Duration, Empty, Failure, Id, Time } from "../components/basics.js";
import { Status } from "../components/status.js";
import { dialectOf } from "../lib/dialects.js";
import { addressOf } from "../lib/find_by_id.js";
import { duration, NOTHING, number } from "../lib/format.js";
import { go, refine } from "../lib/routing.js";
import { useRunList } from "../lib/run_list.js";
import { durationOf, firstTokenOf, queueWaitOf, stepsOf, tokensOf } from "../lib/run_times.js";

const STATUSES = ["created", "running", "completed", "failed", "cancelled"];
const STOP_REASONS = [
  "end_turn", "requires_approval", "cancelled", "error", "llm_api_error", "invalid_llm_response", "max_steps",
  "max_tokens_exceeded", "tool_rule", "context_window_overflow_in_system_prompt",
];
const FILTERS = ["agent", "status", "stop", "conversation", "after", "before"];

/** @type {import("../components/data_table.js").Column<any>[]} */
const COLUMNS = [
  { name: "run", title: "Run", cell: (run) => html`<${Id} id=${run.id} href=${`#/runs/${run.id}`} />` },
  { name: "words", title: "Asked", cell: (run) => html`<${FirstWords} run=${run} />` },
  { name: "status", title: "Status", cell: (run) => html`<${Status} run=${run} />` },
  { name: "agent", title: "Agent", cell: (run) => html`<${AgentName} id=${run.agent_id} />` },
  { name: "created", title: "Created", cell: (run) => html`<${Time} at=${run.created_at} />` },
  { name: "duration", title: "Duration", isFigure: true, cell: (run) => runDuration(run) },
  { name: "queue", title: "Waited", isFigure: true, cell: (run) => duration(queueWaitOf(run)) },
  { name: "first", title: "First token", isFigure: true, cell: (run) => duration(firstTokenOf(run)) },
  { name: "steps", title: "Steps", isFigure: true, cell: (run) => number(stepsOf(run)) },
  { name: "tokens", title: "Tokens", isFigure: true, cell: (run) => number(tokensOf(run)) },
  { name: "stop", title: "Stopped by", cell: (run) => run.stop_reason ?? "" },
  { name: "came", title: "Came by", cell: (run) => dialectOf(run) },
];

/** @param {import("../app.js").PageProps} props */
export function RunsPage({ query }) {
  const { rows, error, hasMore, loadMore, reload, look } = useRunList({
    agent_id: query.agent ?? "",
    statuses: query.status ?? "",
    stop_reason: query.stop ?? "",
    conversation_id: query.conversation ?? "",
    created_after: asTime(query.after),
    created_before: asTime(query.before),
  });
  const isFiltered = FILTERS.some((name) => query[name]);
  return html`
    <div class="page-head"><h1>Runs</h1><${Search} /></div>
    <${Filters} query=${query} />
    <${Failure} error=${error} retry=${reload} />
    ${rows === undefined && !error && html`<p role="status">Asking for the runs…</p>`}
    ${rows?.length === 0 && (isFiltered ? html`<${NoneFits} />` : html`<${NoRuns} />`)}
    ${rows !== undefined &&
    rows.length > 0 &&
    html`
      <${DataTable} label="Runs" columns=${COLUMNS} rows=${rows} keyOf=${(/** @type {any} */ run) => run.id}
        onOpen=${(/** @type {any} */ run) => go(`/runs/${run.id}`)} onEnd=${loadMore} onSight=${look} />
      <div class="table-foot">
        <span>${number(rows.length)} runs${hasMore ? ", more as you scroll" : ""}</span>
        <span><kbd>↑</kbd> <kbd>↓</kbd> choose, <kbd>Enter</kbd> opens</span>
      </div>
    `}
  `;
}

/**
 * The beginning of the run's input, or the activity of a run without input.
 * @param {{run: any}} props
 */
function FirstWords({ run }) {
  const { first_words: words, tool_name: tool, run_type: type } = run.metadata ?? {};
  if (words) return html`<span class="first-words" title=${words}><bdi>${words}</bdi></span>`;
  if (tool) return html`<span class="quiet-text">a call of <code>${tool}</code></span>`;
  return html`<span class="quiet-text">${type === "compaction" ? "its history is compacted" : NOTHING}</span>`;
}

/** @param {any} run */
function runDuration(run) {
  const isOver = run.status !== "created" && run.status !== "running";
  return html`<${Duration} ms=${durationOf(run)} since=${isOver ? null : run.created_at} />`;
}

/** @param {string | undefined} local the value of a field for a date and a time, in the reader's time zone */
function asTime(local) {
  const found = local ? new Date(local) : null;
  return found === null || Number.isNaN(found.getTime()) ? "" : found.toISOString();
}

function Search() {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  /** @param {Event} event */
  const search = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      location.hash = await addressOf(field.current?.value ?? "");
    } catch (thrown) {
      setError(thrown instanceof Error ? thrown : new Error(String(thrown)));
    }
  };
  return html`
    <form role="search" onSubmit=${search}>
      <label class="for-readers" for="search">Id of a run, step, message, approval, agent or conversation</label>
      <input id="search" type="search" size="36" placeholder="Any id: run-, step-, message-, approval-…" ref=${field} />
      <button type="submit">Find</button>
      <${Failure} error=${error} />
    </form>
  `;
}

/** @param {{query: Record<string, string>}} props */
function Filters({ query }) {
  /** @param {string} name */
  const set = (name) => (/** @type {any} */ event) => refine({ [name]: event.currentTarget.value.trim() });
  const [clears, setClears] = useState(0);
  const clear = () => {
    setClears(clears + 1);
    refine(Object.fromEntries(FILTERS.map((name) => [name, ""])));
  };
  return html`
    <div class="filters" role="group" aria-label="Filters">
      <label>Status
        <select value=${query.status ?? ""} onChange=${set("status")}>
          <option value="">any</option>
          ${STATUSES.map((one) => html`<option value=${one}>${one}</option>`)}
        </select>
      </label>
      <label>Stopped by
        <select value=${query.stop ?? ""} onChange=${set("stop")}>
          <option value="">any</option>
          ${STOP_REASONS.map((one) => html`<option value=${one}>${one}</option>`)}
        </select>
      </label>
      <${AgentFilter} key=${clears} agentId=${query.agent ?? ""} />
      <label>Conversation<input value=${query.conversation ?? ""} placeholder="conv-…" onChange=${set("conversation")} /></label>
      <label>Created after<input type="datetime-local" value=${query.after ?? ""} onChange=${set("after")} /></label>
      <label>Created before<input type="datetime-local" value=${query.before ?? ""} onChange=${set("before")} /></label>
      <button type="button" onClick=${clear}>Clear</button>
    </div>
  `;
}

function NoneFits() {
  return html`<${Empty} title="No run fits these filters"><p>Clear them, or choose others.</p><//>`;
}

function NoRuns() {
  const line =
    `curl -s ${location.origin}/v1/agents -H 'Content-Type: application/json' -d '{"name": "first", "model": "builtin/echo"}'\n` +
    `curl -s ${location.origin}/v1/agents/AGENT_ID/messages/async -H 'Content-Type: application/json' \\\n` +
    `  -d '{"messages": [{"role": "user", "content": "Hello"}]}'`;
  return html`
    <${Empty} title="No runs yet">
      <p>Make an agent with the first line, and talk to it on the <a href="#/agents">Agents</a> page or with the second.
        Where the server asks for a key, add <code>-H "Authorization: Bearer $HOLDFAST_API_KEY"</code>.</p>
      <pre tabindex="0" aria-label="Commands">${line}</pre>
      <${Copy} text=${line} what="the commands" />
    <//>
  `;
}

// One run: its output, live or replayed, the parts of its time, and the ways to steer it.

import { html, useEffect, useSignal } from "../html.js";
import { AgentName, Failure, Id, Time, Duration } from "../components/basics.js";
import { Status } from "../components/status.js";
import { Connection } from "../components/connection.js";
import { RawEvents } from "../components/raw_events.js";
import { Journal } from "../components/code_agents.js";
import { CancelRun } from "../components/cancel_run.js";
import { Effects } from "../components/effects.js";
import { InjectMessage } from "../components/inject_message.js";
import { ResumeLines } from "../components/resume_lines.js";
import { Transcript } from "../components/transcript.js";
import { Usage } from "../components/usage.js";
import { Waterfall } from "../components/waterfall.js";
import { request } from "../lib/api.js";
import { useDecided } from "../lib/decisions.js";
import { dialectOf } from "../lib/dialects.js";
import { duration, number } from "../lib/format.js";
import { asText } from "../lib/frames.js";
import { usePolled } from "../lib/polling.js";
import { refine } from "../lib/routing.js";
import { isActive, isOver, useRunChain } from "../lib/run_chain.js";
import { useRunStream } from "../lib/run_stream.js";
import { firstPieceAt } from "../lib/waterfall.js";
import { durationOf, endedAtOf, firstTokenOf, queueWaitOf, startedAtOf, stepsOf } from "../lib/run_times.js";

/** The most messages of a list's page: of a longer input only the first ones are shown. */
const INPUT_LIMIT = 1000;

/** @type {Record<string, string>} */
const INPUT_SPEAKERS = { user_message: "User", system_message: "System" };

/** The kinds of runs that answer no message. @type {Record<string, string>} */
const KINDS = { compaction: "a compaction", tool_run: "a call of a tool", generate: "a question to a model" };

/** @param {import("../app.js").PageProps} props */
export function RunPage({ params, query }) {
  const { runs, error, reload, askSoon } = useRunChain(params.id);
  const from = Math.max(0, Math.floor(Number(query.from ?? 0)) || 0);
  if (runs.length === 0) {
    return html`<h1>Run</h1><${Failure} error=${error} retry=${reload} />
      ${error === null && html`<p role="status">Asking for the run…</p>`}`;
  }
  return html`<${ShownRun} key=${`${params.id}:${from}`} runs=${runs} from=${from} reload=${reload} askSoon=${askSoon} />`;
}

/**
 * @param {{runs: any[], from: number, reload: () => void, askSoon: () => void}} props `runs`: the run and its
 *   continuations
 */
function ShownRun({ runs, from, reload, askSoon }) {
  const run = runs[0];
  const last = runs[runs.length - 1];
  const stream = useRunStream(runs.map((one) => one.id), Math.max(0, from - 1));
  const { timeline, events, position, turns } = stream.value;
  const transcript = useDecided(stream.value.transcript, runs);
  useEffect(() => {
    if (turns > 0) askSoon();
  }, [turns]);
  const isWorking = isActive(last);
  const hasEnded = isOver(last);
  return html`
    <div class="page-head">
      <h1>Run <${Id} id=${run.id} whole=${true} /></h1>
      <${Status} run=${last} />
    </div>
    <${Facts} run=${run} firstTokenAt=${from <= 1 ? firstPieceAt(timeline) : null} />
    <${Chain} runs=${runs} />
    <${WhatHappened} run=${last} />
    <${Children} key=${last.id} run=${last} turns=${turns} />
    <${Connection} shown=${stream.value} from=${from} onFrom=${(/** @type {number} */ number) => refine({ from: number || "" })} />
    <div class="run-columns">
      <section aria-labelledby="transcript-title">
        <h2 id="transcript-title">What was said and done</h2>
        <${Input} run=${run} transcript=${transcript} />
        <${Transcript} transcript=${transcript} agentId=${run.agent_id} seenUpTo=${position} isOver=${hasEnded && stream.value.state === "ended"} onDecide=${askSoon} />
        <${Journal} run=${last} isActive=${isWorking} turns=${turns} />
      </section>
      <aside aria-label="About this run">
        <${Effects} key=${`effects of ${run.id}`} runs=${runs} hasOpenCall=${isWorking && hasOpenCall(transcript)} turns=${turns} />
        ${isWorking && !kindOf(last) && html`<${InjectMessage} runId=${last.id} />`}
        <${CancelRun} key=${last.id} run=${last} onCancelled=${reload} />
        <${Waterfall} timeline=${timeline} startedAt=${startedAtOf(run)} endedAt=${hasEnded ? endedAtOf(last) : null} />
        <${Usage} usage=${transcript.usage} runId=${last.id} turns=${isWorking ? turns : 0} />
        <${ResumeLines} runId=${last.id} lastSeq=${transcript.lastSeq} />
        <${RawEvents} events=${events} count=${events.length} />
      </aside>
    </div>
  `;
}

/** @param {import("../lib/frames.js").Transcript} transcript */
const hasOpenCall = ({ items }) => items.some((item) => item.call !== undefined && item.call.result === undefined && !item.isVoid);

/** @param {any} run */
const kindOf = (run) => KINDS[run.metadata?.run_type] ?? "";

/** @param {{run: any, firstTokenAt: number | null}} props `firstTokenAt`: Unix ms, if the stream has it */
function Facts({ run, firstTokenAt }) {
  return html`
    <dl class="facts">
      <div><dt>Agent</dt><dd><${AgentName} id=${run.agent_id} /></dd></div>
      ${run.conversation_id && html`<div><dt>Conversation</dt><dd><${Id} id=${run.conversation_id} href=${`#/runs?conversation=${run.conversation_id}`} /></dd></div>`}
      ${run.code_agent && html`<div><dt>Code</dt><dd>${run.code_agent.name}${run.code_agent.version && `, version ${run.code_agent.version}`}</dd></div>`}
      ${kindOf(run) && html`<div><dt>Kind</dt><dd>${kindOf(run)}</dd></div>`}
      ${run.metadata?.parent_run_id
        ? html`<div><dt>Started by</dt><dd><${Id} id=${run.metadata.parent_run_id} href=${`#/runs/${run.metadata.parent_run_id}`} /></dd></div>`
        : html`<div><dt>Came by</dt><dd>${dialectOf(run)}</dd></div>`}
      <div><dt>Created</dt><dd><${Time} at=${run.created_at} /></dd></div>
      <div><dt>Duration</dt><dd><${Duration} ms=${durationOf(run)} since=${isActive(run) ? run.created_at : null} /></dd></div>
      <div><dt>Waited for a worker</dt><dd>${duration(queueWaitOf(run))}</dd></div>
      <div><dt>First token</dt><dd>${duration(firstTokenOf(run, firstTokenAt))}</dd></div>
      <div><dt>Steps</dt><dd>${number(stepsOf(run))}</dd></div>
      ${run.stop_reason && html`<div><dt>Stopped by</dt><dd>${run.stop_reason}</dd></div>`}
      ${run.metadata?.trace_id && html`<div><dt>Trace</dt><dd><${Id} id=${run.metadata.trace_id} /></dd></div>`}
    </dl>
  `;
}

/** @param {{runs: any[]}} props */
function Chain({ runs }) {
  const before = runs[0].metadata?.continues_run_id;
  const after = runs.slice(1);
  if (!before && after.length === 0) return null;
  return html`
    <p class="note">
      ${before && html`This run goes on after an approval, for which <a href=${`#/runs/${before}`}>the run before</a> waited. `}
      ${after.length > 0 && html`After an approval it goes on as ${after.map((one) => html`<${Id} id=${one.id} href=${`#/runs/${one.id}`} /> `)}, which is shown here, too.`}
    </p>
  `;
}

/**
 * The runs that the run has started through other agents, as they change.
 * @param {{run: any, turns: number}} props `turns` as in `Shown`: the run's own stream shows when it starts another run
 */
function Children({ run, turns }) {
  const open = useSignal(/** @type {ReadonlySet<string>} */ (new Set()));
  const { data } = usePolled(
    async (signal) => {
      const query = { parent_run_id: run.id, order: "asc", limit: 100 };
      /** @type {any[]} */
      const found = await request("GET", "/v1/runs", { query, signal });
      open.value = new Set(found.filter((one) => !isOver(one)).map((one) => one.id));
      return found;
    },
    open.value.size > 0 ? { agentId: null, concerns: (change) => open.peek().has(change.run_id) } : 0,
    [run.id],
    `${turns} ${run.status}`,
  );
  const children = data.value ?? [];
  if (children.length === 0) return null;
  return html`
    <section aria-labelledby="children-title">
      <h2 id="children-title">Runs of other agents</h2>
      <ul class="children">
        ${children.map(
          (/** @type {any} */ one) => html`<li key=${one.id}>
            <${AgentName} id=${one.agent_id} />: <${Id} id=${one.id} href=${`#/runs/${one.id}`} /> <${Status} run=${one} />
          </li>`,
        )}
      </ul>
    </section>
  `;
}

/** @param {{run: any}} props */
function WhatHappened({ run }) {
  const { error, waiting, pruned_at: prunedAt } = run.metadata ?? {};
  return html`
    ${error && html`<div class="failure" role="alert"><p><strong>${error.error_type}</strong> ${error.message}</p>
      ${error.detail && html`<pre tabindex="0" aria-label="Detail">${error.detail}</pre>`}
      ${error.hint && html`<p>${error.hint}</p>`}</div>`}
    ${waiting?.for === "approval" && html`<p class="note">The run waits for a person's decision on its calls.</p>`}
    ${waiting?.for === "runs" && html`<p class="note">The run waits for the answers of other agents. No worker is occupied by it.</p>`}
    ${waiting?.for === "budget" && html`<p class="note">The run waits for room in a budget, until <${Time} at=${waiting.until} /> at first.</p>`}
    ${prunedAt && html`<p class="note">Retention removed this run's log <${Time} at=${prunedAt} />: its messages are left.</p>`}
  `;
}

/**
 * The input of the run, also while it waits for a worker.
 * @param {{run: any, transcript: import("../lib/frames.js").Transcript}} props
 */
function Input({ run, transcript }) {
  const { data, error, reload } = usePolled(
    (signal) => request("GET", `/v1/runs/${run.id}/messages`, { query: { limit: INPUT_LIMIT, order: "asc" }, signal }),
    0,
    [run.id],
  );
  const isUnknown = data.value === undefined;
  // A turn that failed without output leaves nothing in the history, and a rollback removes its turn from there.
  const isForgotten = data.value?.length === 0 && !isActive(run);
  // The first words keep the place of the input until it is there: the output must not move down while it is read.
  const showsFirstWords = isForgotten || (isUnknown && !run.metadata?.continues_run_id);
  return html`
    ${showsFirstWords && run.metadata?.first_words &&
    html`<div class="item item-input" data-kind="asked" data-first-words>
      <p class="speaker">User <span class="quiet-text">
        ${isUnknown ? html`<${Time} at=${run.created_at} />` : "the first words; the history has not kept the turn"}
      </span></p>
      <div class="said">${run.metadata.first_words}</div>
    </div>`}
    ${error.value && html`<p>The run's input could not be fetched.</p>`}
    <${Failure} error=${error.value} retry=${reload} />
    ${inputsAmong(data.value ?? [], transcript).map(
      (one) => html`
        <div key=${one.id} class="item item-input" data-kind="asked">
          <p class="speaker">${INPUT_SPEAKERS[one.message_type]} <span class="quiet-text"><${Time} at=${one.date} /></span></p>
          <div class="said">${asText(one.content)}</div>
        </div>
      `,
    )}
  `;
}

/**
 * The messages with which the run began: all before its first answer, except injected ones, which the transcript shows.
 * @param {any[]} messages of the run, oldest first
 * @param {import("../lib/frames.js").Transcript} transcript
 * @returns {any[]}
 */
function inputsAmong(messages, transcript) {
  const answer = messages.findIndex((one) => !(one.message_type in INPUT_SPEAKERS));
  const injected = new Set(transcript.items.filter((item) => item.kind === "input").map((item) => item.messageId));
  return messages.slice(0, answer < 0 ? undefined : answer).filter((one) => !injected.has(one.id));
}

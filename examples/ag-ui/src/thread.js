// A thread that survives: the run is Holdfast's, and the page only shows it. Everything here is AG-UI's own client, plus
// one EventSource that says when something has happened in the thread, in this tab or elsewhere.

import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client"

const RETRY_MS = 1000

class HoldfastAgent extends HttpAgent {
  /** What the thread shows now. HttpAgent has no `connect` of its own. */
  connect({ threadId, protocolVersion }) {
    const query = new URLSearchParams({ threadId, protocolVersion })
    return transformHttpEventStream(runHttpRequest(() => this.fetch(`${this.url}/connect?${query}`, {})))
  }
}

/** `onChange` is called whenever the page should look again. */
export function openThread(threadId, onChange) {
  let agent = newAgent()
  let isBehind = false // something has happened that this tab has not shown
  let isLooking = false
  const unsent = new Map() // what was written here and the server has not shown yet, by id
  let retry
  let lent // what our server gave us: the token, and which agent and conversation it opens

  const thread = {
    messages: [],
    decisions: new Map(), // by interrupt
    isConnected: false,
    failure: null,
    model: null,
    get isBusy() {
      return agent.isRunning
    },
    get interrupts() {
      return agent.isRunning ? [] : agent.pendingInterrupts
    },
    send(text) {
      thread.failure = null
      const message = { id: crypto.randomUUID(), role: "user", content: text }
      unsent.set(message.id, message)
      agent.addMessage(message)
      run()
    },
    /** A run goes on when all of its interrupts are decided, in one request. */
    decide(interruptId, approved) {
      thread.decisions.set(interruptId, approved)
      const resume = agent.pendingInterrupts.map(({ id }) => decision(id, thread.decisions.get(id)))
      if (resume.every(({ payload }) => payload.approved !== undefined)) run({ resume })
      onChange()
    },
    /** Ends the run. `agent.abortRun()` would only hang up, as closing the tab does. */
    async stop() {
      const answer = await ask("/stop", { method: "POST", body: JSON.stringify({ threadId }), headers: JSON_TYPE })
      if (answer.status !== 409) await accepted(answer).catch(fail) // 409: it had ended already
    },
  }

  function newAgent() {
    const made = new HoldfastAgent({ url: "", threadId, fetch: ask }) // "" and "/connect"
    made.subscribe({
      onMessagesChanged: () => made === agent && show(made.messages),
      onRunErrorEvent: ({ event }) => fail(new Error(event.message)),
      onRunFinalized: () => void setTimeout(settle),
    })
    return made
  }

  function show(messages) {
    thread.messages = messages
    onChange()
  }

  /** What is away comes back by itself; all else is shown. */
  function fail(error) {
    clearTimeout(retry)
    if (isAway(error)) retry = setTimeout(catchUp, RETRY_MS)
    else thread.failure = error.message
    onChange()
  }

  async function token() {
    if (!lent || Date.parse(lent.expires_at) - Date.now() < 60_000) {
      const answer = await fetch("/token", { method: "POST", body: JSON.stringify({ chat_id: threadId }) })
      lent = await (await accepted(answer)).json()
    }
    return lent
  }

  /** A request to the agent's own routes, with the token. */
  async function ask(path, init) {
    const { agent_id, token: bearer } = await token()
    return fetch(`/ag-ui/${agent_id}${path}`, { ...init, headers: { ...init.headers, Authorization: `Bearer ${bearer}` } })
  }

  function run(parameters) {
    agent.runAgent(parameters).catch(fail)
    onChange()
  }

  /** Shows what has happened. Once at a time, and not while this tab reads an answer: `settle` comes back here. */
  async function catchUp() {
    isBehind = true
    if (isLooking) return
    isLooking = true
    try {
      while (isBehind && !agent.isRunning) {
        isBehind = false
        await look()
      }
    } catch (error) {
      fail(error)
    } finally {
      isLooking = false
      onChange()
    }
  }

  /** Takes what the server has: the messages, and the answer that is being written, if there is one. */
  async function look() {
    agent = newAgent() // the old one's interrupts may be decided by now
    thread.decisions.clear()
    await agent.connectAgent()
    show(agent.messages)
    agent.messages.forEach(({ id }) => unsent.delete(id))
    if (unsent.size === 0) return
    // Words that did not arrive are sent again. Should they have arrived after all, the server knows their id.
    agent.addMessages([...unsent.values()])
    run()
  }

  /** Called when a request of the agent is over. */
  function settle() {
    if (isBehind) catchUp()
    onChange()
  }

  /** Follows the conversation, for as long as the page lives. */
  async function follow() {
    const { conversation_id, token: bearer } = await token()
    const events = new EventSource(`/v1/conversations/${conversation_id}/events?after=now&token=${encodeURIComponent(bearer)}`)
    events.onmessage = ({ data }) => {
      if (data === "[DONE]") return events.close() // the conversation is deleted
      const { event_type: happened, event_data } = JSON.parse(data)
      if (happened === "caught_up") Object.assign(thread, { isConnected: true, failure: null, model: lent.model })
      if (happened === "run_ended" && event_data.status === "failed") thread.failure ??= "The run has failed."
      if (["caught_up", "run_started", "run_ended", "approvals_resolved"].includes(happened)) catchUp()
    }
    events.onerror = ({ data }) => {
      if (data) return // a run has failed, and `run_ended` says so too; this connection is well
      thread.isConnected = false
      onChange()
      if (events.readyState === EventSource.CLOSED) setTimeout(start, RETRY_MS) // a 5xx, or a token that has run out
    }
  }

  function start() {
    follow().catch(() => setTimeout(start, RETRY_MS))
  }

  start()
  return thread
}

const JSON_TYPE = { "Content-Type": "application/json" }
const decision = (interruptId, approved) => ({ interruptId, status: "resolved", payload: { approved } })

async function accepted(answer) {
  if (answer.ok) return answer
  throw Object.assign(new Error(await answer.text()), { status: answer.status })
}

/** Whether the network is away (the browsers' TypeError), or Holdfast behind its proxy. */
const isAway = error => error instanceof TypeError || error.status >= 502

// A chat that survives: the run is Holdfast's, and the page only shows it. Everything here is the AI SDK's own client,
// plus one EventSource that says when something has happened in the chat, in this tab or elsewhere.

import { Chat } from "@ai-sdk/react"
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai"

const RETRY_MS = 1000

export function openChat(chatId) {
  const listeners = new Set()
  let state = { isConnected: false, failure: null, model: null }
  let isBehind = false // something has happened that this tab has not shown
  let isLooking = false
  let retry
  let lent // what our server gave us: the token, and which agent and conversation it opens

  function set(change) {
    state = { ...state, ...change }
    listeners.forEach(listener => listener())
  }

  async function token() {
    if (!lent || Date.parse(lent.expires_at) - Date.now() < 60_000) {
      const answer = await fetch("/token", { method: "POST", body: JSON.stringify({ chat_id: chatId }) })
      lent = await (await accepted(answer)).json()
    }
    return lent
  }

  /** A request to the chat's own routes, with the token. */
  async function ask(path, init = {}) {
    const { agent_id, token: bearer } = await token()
    return fetch(`/ai-sdk/${agent_id}/chat${path}`, { ...init, headers: { ...init.headers, Authorization: `Bearer ${bearer}` } })
  }

  const chat = new Chat({
    id: chatId,
    transport: new DefaultChatTransport({ api: "", fetch: ask }), // "" and "/{chatId}/stream"
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onError: failed,
  })
  const isBusy = () => chat.status === "submitted" || chat.status === "streaming"

  /** Shows what has happened. Once at a time, and not while this tab reads an answer: `settled` comes back here. */
  async function catchUp() {
    isBehind = true
    if (isLooking) return
    isLooking = true
    try {
      while (isBehind && !isBusy()) {
        isBehind = false
        await look()
      }
    } catch (error) {
      failed(error)
    } finally {
      isLooking = false
    }
  }

  /** Takes what the server has: its list of messages, and then the answer that is being written, if there is one. */
  async function look() {
    const { messages } = await (await accepted(await ask(`/${chatId}`))).json()
    if (isBusy()) return void (isBehind = true) // somebody has written here meanwhile
    // Words that did not arrive are sent again. Should they have arrived after all, the server knows their id.
    const unsent = chat.messages.filter(mine => mine.role === "user" && !messages.some(({ id }) => id === mine.id))
    chat.messages = [...messages, ...unsent]
    await (unsent.length ? chat.sendMessage() : chat.resumeStream())
  }

  /** Called when a request of the chat is over. */
  function settled() {
    if (isBehind) catchUp()
  }

  /** What is away comes back by itself; all else is shown. */
  function failed(error) {
    if (!isAway(error)) return set({ failure: error.message })
    clearTimeout(retry)
    retry = setTimeout(catchUp, RETRY_MS)
  }

  /** Follows the conversation, for as long as the page lives. */
  async function follow() {
    const { conversation_id, token: bearer } = await token()
    const events = new EventSource(`/v1/conversations/${conversation_id}/events?after=now&token=${encodeURIComponent(bearer)}`)
    events.onmessage = ({ data }) => {
      if (data === "[DONE]") return events.close() // the conversation is deleted
      const { event_type: happened, event_data } = JSON.parse(data)
      if (happened === "caught_up") set({ isConnected: true, failure: null, model: lent.model }) // first, and after each cut
      if (happened === "run_ended" && event_data.status === "failed") set({ failure: state.failure ?? "The run has failed." })
      if (["caught_up", "run_started", "run_ended", "approvals_resolved"].includes(happened)) catchUp()
    }
    events.onerror = ({ data }) => {
      if (data) return // a run has failed, and `run_ended` says so too; this connection is well
      set({ isConnected: false })
      if (events.readyState === EventSource.CLOSED) setTimeout(start, RETRY_MS) // a 5xx, or a token that has run out
    }
  }

  function start() {
    follow().catch(() => setTimeout(start, RETRY_MS))
  }

  start()
  return {
    chat,
    settled,
    subscribe: listener => (listeners.add(listener), () => listeners.delete(listener)),
    state: () => state,
    send(text) {
      set({ failure: null })
      return chat.sendMessage({ text })
    },
    /** Ends the run. `chat.stop()` would only hang up, as closing the tab does. */
    async stop() {
      const answer = await ask(`/${chatId}/stop`, { method: "POST" })
      if (answer.status !== 409) await accepted(answer).catch(failed) // 409: it had ended already
    },
  }
}

async function accepted(answer) {
  if (answer.ok) return answer
  throw Object.assign(new Error(await answer.text()), { statusCode: answer.status })
}

/** Whether the network is away (the browsers' TypeError), or Holdfast behind its proxy. */
const isAway = error => error instanceof TypeError || error.statusCode >= 502

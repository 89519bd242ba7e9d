import { useChat } from "@ai-sdk/react"
import { useEffect, useState, useSyncExternalStore } from "react"
import { hint, suggestions } from "./suggestions.js"

export function Page({ opened }) {
  const { messages, status, addToolApprovalResponse } = useChat({ chat: opened.chat, throttle: 50 })
  const { isConnected, failure, model } = useSyncExternalStore(opened.subscribe, opened.state)
  useEffect(opened.settled, [status])

  const isBusy = status === "submitted" || status === "streaming"
  const isWaiting = messages.at(-1)?.parts.some(part => part.state === "approval-requested") ?? false
  const decide = (id, approved) => addToolApprovalResponse({ id, approved })

  return (
    <main>
      <header>
        <h1>Chat on Holdfast</h1>
        <span role="status">{isConnected ? (isBusy ? "Working" : isWaiting ? "Waits for you" : "Ready") : "Connecting"}</span>
        <a href="#">New chat</a>
      </header>
      <section aria-label="Messages">
        <div>
          {messages.map(message => (
            <Message key={message.id} message={message} decide={decide} />
          ))}
          {isConnected && messages.length === 0 && <Suggestions model={model} send={opened.send} />}
        </div>
      </section>
      {failure && <p role="alert">{failure}</p>}
      <Composer canSend={isConnected && !isBusy && !isWaiting} canStop={isBusy || isWaiting} send={opened.send} stop={opened.stop} />
    </main>
  )
}

function Message({ message, decide }) {
  return (
    <article className={message.role} data-message={message.id}>
      {message.parts.map((part, index) => (
        <Part key={index} part={part} decide={decide} />
      ))}
    </article>
  )
}

function Part({ part, decide }) {
  switch (part.type) {
    case "text":
      return <p className="text">{withoutScript(part.text)}</p>
    case "reasoning":
      return (
        <details className="reasoning" open={part.state === "streaming"}>
          <summary>Reasoning</summary>
          {part.text}
        </details>
      )
    case "dynamic-tool":
      return <ToolCall part={part} decide={decide} />
    case "steering-message": // somebody added it while the agent worked
      return <blockquote>{part.parts.map(inner => inner.text).join("")}</blockquote>
    case "data-holdfast-gap":
      return <p className="note">A part of this answer is not shown.</p>
    default:
      return null
  }
}

const STATES = {
  "input-streaming": "being written",
  "input-available": "running",
  "approval-requested": "waits for your decision",
  "output-available": "done",
  "output-error": "failed",
  "output-denied": "denied",
}

function ToolCall({ part, decide }) {
  const responded = part.approval?.approved ? "approved" : "denied"
  return (
    <div className="tool" data-state={part.state}>
      <div className="call">
        <code>{part.toolName}</code>
        <code>{part.input === undefined ? "" : JSON.stringify(part.input)}</code>
        <span>{STATES[part.state] ?? responded}</span>
      </div>
      {part.state === "approval-requested" && (
        <div className="buttons">
          <button onClick={() => decide(part.approval.id, true)}>Approve</button>
          <button onClick={() => decide(part.approval.id, false)}>Deny</button>
        </div>
      )}
      {part.state === "output-available" && <pre>{asText(part.output)}</pre>}
      {part.state === "output-error" && <pre>{part.errorText}</pre>}
    </div>
  )
}

function Suggestions({ model, send }) {
  return (
    <div className="suggestions">
      <p className="note">{hint(model)}</p>
      {suggestions(model).map(({ title, text }) => (
        <button key={title} onClick={() => send(text)}>
          {title}
        </button>
      ))}
    </div>
  )
}

function Composer({ canSend, canStop, send, stop }) {
  const [text, setText] = useState("")
  function submit(event) {
    event.preventDefault()
    if (!canSend || !text.trim()) return
    send(text)
    setText("")
  }
  return (
    <form onSubmit={submit}>
      <textarea
        aria-label="Message"
        placeholder="Write a message"
        rows={2}
        value={text}
        autoFocus
        onChange={event => setText(event.target.value)}
        onKeyDown={event => event.key === "Enter" && !event.shiftKey && submit(event)}
      />
      {canStop ? (
        <button type="button" onClick={stop}>
          Stop
        </button>
      ) : (
        <button disabled={!canSend}>Send</button>
      )}
    </form>
  )
}

const asText = output => (typeof output === "string" ? output : JSON.stringify(output, null, 2))

/** What a person wrote, without the script that the built-in model plays. */
const withoutScript = text => text.split("```script")[0].trim()

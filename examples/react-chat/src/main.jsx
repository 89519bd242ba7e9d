import { createRoot } from "react-dom/client"
import { Page } from "./Page.jsx"
import { openChat } from "./chat.js"
import "./style.css"

// The chat's name is in the address: a reload and a second tab open the same chat. Any text does.
function chatId() {
  if (!location.hash) location.replace(`#chat-${crypto.randomUUID()}`)
  return location.hash.slice(1)
}

addEventListener("hashchange", () => location.reload())
createRoot(document.getElementById("root")).render(<Page opened={openChat(chatId())} />)

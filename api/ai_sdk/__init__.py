"""The AI SDK's protocol of chats: requests of `useChat`, and streams of UI messages."""

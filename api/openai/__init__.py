"""OpenAI's wire: what its clients send, and what they are answered. The only place that knows its JSON."""

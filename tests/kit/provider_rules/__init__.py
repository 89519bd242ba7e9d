"""The rules that each model provider enforces on a conversation, checked on the HTTP request."""

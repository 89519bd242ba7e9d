"""The rules that each model provider demands of a conversation, checked on the request as it goes over the wire."""

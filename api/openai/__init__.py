"""OpenAI's wire: the requests of its clients and the answers to them. Only this package knows its JSON."""

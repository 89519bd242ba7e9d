"""The worker's models for agents in processes of their own: an endpoint that speaks OpenAI's dialects."""

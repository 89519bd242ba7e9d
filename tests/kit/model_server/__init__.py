"""Model providers on loopback, for tests: OpenAI Chat Completions and Responses, Anthropic Messages, Gemini, streaming.

This fakes the provider, never a class of ours; requests are real HTTP, so a closed connection is real, too.

    async with ModelServer() as server:
        models = Models(server.base_urls(), first_event_timeout=180, idle_timeout=180, retries=0)
        server.say("Good morning.")                                # what the next request is answered with
        server.play(Turn(text="Wait.", calls=[Call("add", {"a": 1})]))  # and the one after it
        ...
        server.requests[0].body                                    # what was sent
        await wait_until(lambda: server.requests[0].client_left, description="the client to hang up")

Turns are played in the order in which they were given, one for each request, whatever its wire. `server.answer_with`
sets a function from request to turn for when none is queued; without one the server says "OK.".
"""

from tests.kit.model_server.server import ModelServer, ReceivedRequest
from tests.kit.model_server.turn import Break, Call, Failure, Turn

__all__ = ["Break", "Call", "Failure", "ModelServer", "ReceivedRequest", "Turn"]

"""Public clients of the API, unmodified, each installed by itself and driven as a process of its own.

    async with client_program("openai for Node.js") as program:
        program.calls(product)
        product.models.say("Good morning.")
        told = await program.told("plain", model="openai/gpt-4o-mini", input="Hello")
        assert told["text"] == "Good morning."

`programs/` has what the processes run: the same stories in each, under the same names and with the same results, so
that one test asks all of them. The versions are in the files of requirements and the lock beside them.
"""

from tests.kit.clients.client_program import AI_SDKS, CLIENTS, ClientProgram, Nowhere, client_program

__all__ = ["AI_SDKS", "CLIENTS", "ClientProgram", "Nowhere", "client_program"]

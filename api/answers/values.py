"""What the types of all answers are made of."""

from typing import Annotated, Any

from pydantic import WithJsonSchema

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339, with its zone."""

Anything = Annotated[Any, WithJsonSchema({})]

Fields = dict[str, Anything]
"""An object whose fields its client or a provider has chosen."""

Nothing = Annotated[None, WithJsonSchema({"type": "null"})]
"""A field of Letta's wire that has no value here."""

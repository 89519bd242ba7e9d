"""What a client asks of a run that is there: to stop, or to be shown again; and what it thinks of a step."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from api.runs.cancel import Cancel
from shared.domain.errors import CancelMode
from shared.domain.ids import MAX_SEQ
from shared.domain.runs import Feedback


class CancelRequestIn(BaseModel):
    """The body of a cancel; all of it may be left out."""

    run_ids: Annotated[list[str], Field(max_length=1000)] | None = None
    reason: Annotated[str | None, Field(max_length=2000)] = None
    mode: CancelMode = CancelMode.INTERRUPT
    wait: Annotated[float | None, Field(ge=0, le=60, description="Seconds to wait for the run to stop.")] = None

    def cancel(self) -> Cancel:
        """The same in our terms, but for the runs that it names."""
        return Cancel(self.reason, self.mode, self.wait)


def _no_boolean(value: object) -> object:
    """Pydantic takes true for 1, which would leave a frame out. Raises pydantic's error."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


class StreamRequest(BaseModel):
    """The body of a resumed stream; all of it may be left out."""

    model_config = ConfigDict(extra="ignore")

    starting_after: Annotated[int, BeforeValidator(_no_boolean), Field(ge=0, le=MAX_SEQ)] | None = None
    include_pings: bool = True
    include_status_events: bool = False
    include_event_times: Annotated[
        bool, Field(description="Each frame has `at_ms`, when it was written, in Unix ms. `date` has whole seconds.")
    ] = False


class StreamTokenRequest(BaseModel):
    """The body of a request for a stream's token; all of it may be left out."""

    valid_for_s: Annotated[int, Field(ge=1, le=86_400)] = 900


class FeedbackRequest(BaseModel):
    """What a person thinks of a step. What is left out stays as it is; null, or an empty list, takes it back."""

    feedback: Feedback | None = None
    tags: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] | None = None

"""What a client asks of a run that is there: to stop, or to be shown again."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from shared.domain.errors import CancelMode
from shared.domain.ids import MAX_SEQ


class CancelRequestIn(BaseModel):
    """The body of a cancel; all of it may be left out."""

    run_ids: Annotated[list[str], Field(max_length=1000)] | None = None
    reason: Annotated[str | None, Field(max_length=2000)] = None
    mode: CancelMode = CancelMode.INTERRUPT
    wait: Annotated[float | None, Field(ge=0, le=60, description="Seconds to wait for the run to stop.")] = None


class StreamRequest(BaseModel):
    """The body of a resumed stream; all of it may be left out."""

    model_config = ConfigDict(extra="ignore")

    starting_after: Annotated[int, Field(ge=0, le=MAX_SEQ)] | None = None
    include_pings: bool = True
    include_status_events: bool = False


class StreamTokenRequest(BaseModel):
    """The body of a request for a stream's token; all of it may be left out."""

    valid_for_s: Annotated[int, Field(ge=1, le=86_400)] = 900

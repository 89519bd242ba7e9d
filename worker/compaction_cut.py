"""Which messages a compaction summarises and which stay as they are. Pure.

What stays begins with a user's message that begins a turn or follows an answer: calls and their results are never
separated, and no provider refuses what is left.
"""

from collections.abc import Sequence

from shared.domain.closing import open_calls
from shared.domain.compaction import CompactionOptions
from shared.domain.messages import Message, SystemMessage, UserMessage
from worker.models.token_estimate import estimate_tokens
from worker.transcript import as_text


def messages_to_summarise(
    history: Sequence[Message], options: CompactionOptions, context_window: int
) -> Sequence[Message]:
    """The oldest part of the history, its system message left out. `context_window` is in tokens.

    A sliding window keeps as many of the newest turns as fit into its share of the context, and at least the last one
    if that alone does not take up the share. When nothing can be kept, everything is summarised.
    """
    spoken = [message for message in history if not isinstance(message.body, SystemMessage)]
    if options.mode == "all":
        return spoken
    sizes = [estimate_tokens(as_text(message.body)) for message in spoken]
    share_of_window = options.keep_share * context_window
    cuts = [place for place in range(1, len(spoken)) if _may_begin(spoken, place)]
    room = min(share_of_window, options.keep_share * sum(sizes))
    fitting = [cut for cut in cuts if sum(sizes[cut:]) <= room]
    if fitting:
        return spoken[: fitting[0]]
    if cuts and sum(sizes[cuts[-1] :]) <= share_of_window:
        return spoken[: cuts[-1]]
    return spoken


def _may_begin(history: Sequence[Message], place: int) -> bool:
    """Whether what stays may begin at this place."""
    body, before = history[place].body, history[place - 1]
    if not isinstance(body, UserMessage) or open_calls(history[:place]) is not None:
        return False
    return not isinstance(before.body, UserMessage) or before.turn != history[place].turn

"""In how many words servers say that a request is too long, and in which they speak of something else."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from worker.models.model_errors import status_error, stream_error

NOW = datetime(2026, 1, 2, tzinfo=UTC)

TOO_LONG = {
    "OpenAI, chat": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. "
        "Please reduce the length of the messages."
    ),
    "OpenAI, Responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenAI, one text": (
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length 10485760, but got "
        "a string with length 11000000 instead."
    ),
    "Azure": (
        "This model's maximum context length is 128000 tokens, however you requested 130000 tokens (126000 in "
        "your prompt; 4000 for the completion). Please reduce your prompt; or completion length."
    ),
    "Anthropic": "prompt is too long: 213462 tokens > 200000 maximum",
    "Anthropic, with the answer": (
        "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000, decrease input length or "
        "`max_tokens` and try again"
    ),
    "Anthropic, bytes": "Request size exceeds the maximum size of 32 MB for a prompt; the request is too large",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "Vertex": (
        "Unable to submit request because the input token count is 1300000 but the model only supports up to "
        "1048576. Reduce the input token count and try again."
    ),
    "Bedrock": "Input is too long for requested model.",
    "Bedrock, Claude": "The model returned the following errors: input length and `max_tokens` exceed context limit",
    "Bedrock, Nova": "Too many input tokens. Max input tokens: 300000, request input token count: 512345",
    "vLLM": (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the"
        " messages, 10000 in the completion). Please reduce the length of the messages or completion."
    ),
    "vLLM, V1": (
        "The decoder prompt (length 5120) is longer than the maximum model length of 4096. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens."
    ),
    "vLLM, the answer": (
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 65536"
        " tokens and your request has 57879 input tokens (8192 > 65536 - 57879)."
    ),
    "SGLang": "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
    "SGLang, with the answer": (
        "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total "
        "of 40000 tokens: 36000 tokens from the input messages and 4000 tokens for the completion."
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3474 `inputs` tokens "
        "and 1000 `max_new_tokens`"
    ),
    "TGI, prompt": "Input validation error: `inputs` must have less than 4095 tokens. Given: 9021",
    "llama.cpp": "the request exceeds the available context size (8192 tokens), try increasing it",
    "llama.cpp, older": (
        "the request exceeds the available context size. try increasing the context size or enable context shift"
    ),
    "llama-cpp-python": "Requested tokens (5210) exceed context window of 4096",
    "LM Studio": (
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with "
        "context length of only 32768 tokens, which is not enough. Try to load the model with a larger context "
        "length, or provide a shorter input."
    ),
    "LM Studio, newer": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Ollama": "the input length exceeds the context length",
    "Ollama, runner": "prompt too long; exceeded max context length by 2041 tokens",
    "LiteLLM": "litellm.ContextWindowExceededError: litellm.BadRequestError: prompt is too long: 210000 tokens",
    "OpenRouter": (
        "This endpoint's maximum context length is 65536 tokens. However, you requested about 78000 tokens (70000"
        " of text input, 8000 in the output). Please reduce the length of either one."
    ),
    "Groq": "Please reduce the length of the messages or completion.",
    "Together": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 12000 `inputs` tokens"
    ),
    "Mistral": "Prompt contains 40210 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "DeepSeek": (
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (66000 in the "
        "messages, 4000 in the completion)."
    ),
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 128000 - received 140000. Try using "
        "a shorter prompt, or enabling prompt truncating."
    ),
    "MiniMax": "invalid params, context window exceeds limit",
    "Kimi": "Invalid request: Your request exceeded model token limit: 262144",
    "Z.ai": "Prompt exceeds max length",
    "Copilot": "prompt token count of 130000 exceeds the limit of 128000",
    "Cerebras": "Please reduce the length of the messages or completion. Current length is 9100 while limit is 8192",
    "Fireworks": "The prompt is too long: 140000, model maximum context length: 131071",
    "Qwen": "Range of input length should be [1, 129024]",
    "llama.cpp, on the way": "Context size has been exceeded.",
    "llama.cpp, without shift": "context shift is disabled",
    "TensorRT-LLM": "The sum of prompt length (5000.0), query length (0) should not exceed max_num_tokens (4096)",
    "MLX": "Prompt has 1327246 tokens, but the configured context size is 256000 tokens",
    "ChatGPT": ("The message you submitted was too long, please reload the conversation and submit something shorter."),
    "GitHub Models": "tokens in request more than max tokens allowed",
    "a proxy": "Payload too large",
    "a code as a text": "model_max_prompt_tokens_exceeded",
    "AI21": "prompt tokens limit exceeded: 5000 > 4000",
    "characters": "The input characters limit is 90000",
    "a limit": "The number of tokens (40000) is beyond the limit",
    "a window": "The model's context window is full",
    "OpenAI, Responses, one text": (
        "Invalid 'input[3].output': string too long. Expected a string with maximum length 10485760, but got a "
        "string with length 11000000 instead."
    ),
    "Perplexity": "The request has 140000 tokens, and exceeds the model's maximum of 127072 tokens",
}

CODES = (
    {"code": "context_length_exceeded", "message": "No."},
    {"type": "exceed_context_size_error", "message": "No.", "code": 400},
    {"code": "context_window_exceeded", "message": "No."},
    {"code": "model_context_window_exceeded", "message": "No."},
)

SOMETHING_ELSE = {
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got 70 instead.",
    "Invalid 'metadata.key': string too long. Expected a string with maximum length 512.",
    "tools: too many tools, the limit is 128",
    "The model `gpt-9` does not exist or you do not have access to it.",
    "Invalid value for 'temperature': 3.0. Maximum is 2.0.",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for this model",
    "tools.0.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'",
    "messages: roles must alternate between user and assistant",
    "Image dimensions exceed max allowed size: 8000 pixels",
    "An assistant message with 'tool_calls' must be followed by tool messages.",
    "Missing required parameter: 'messages[0].role'.",
}


def refused(error: dict[str, Any], status: int = 400) -> ModelError:
    body = json.dumps({"error": error}).encode()
    return status_error(status, {}, body, provider="openai_compatible", now=NOW)


@pytest.mark.parametrize("words", TOO_LONG.values(), ids=TOO_LONG.keys())
def test_a_refusal_for_length_is_known_by_its_words(words: str) -> None:
    for error in (refused({"message": words}), stream_error({"message": words}, provider="vllm")):
        assert (error.error_type, error.retryable) == (ModelErrorType.CONTEXT_WINDOW, False)
        assert error.message == words


@pytest.mark.parametrize("error", CODES)
def test_a_refusal_for_length_is_known_by_its_code(error: dict[str, Any]) -> None:
    assert refused(error).error_type is ModelErrorType.CONTEXT_WINDOW


@pytest.mark.parametrize("words", sorted(SOMETHING_ELSE))
def test_other_refusals_are_none_for_length(words: str) -> None:
    assert refused({"message": words}).error_type is ModelErrorType.BAD_REQUEST


@pytest.mark.parametrize("words", TOO_LONG.values(), ids=TOO_LONG.keys())
def test_a_limit_of_tokens_per_minute_is_none_for_length(words: str) -> None:
    assert refused({"message": words}, status=429).error_type is ModelErrorType.RATE_LIMIT

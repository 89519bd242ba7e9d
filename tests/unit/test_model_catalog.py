"""Handles, windows, and which providers are configured."""

from typing import Any, cast

import pytest

from api.offered_models import CodeAgentNames, OfferedModels
from shared.domain.models import EMBEDDINGS, MODELS, PROVIDERS, KnownModel, context_window_of, family_of, split_handle
from shared.network.server_models import FoundModels


@pytest.mark.parametrize(
    ("handle", "window"),
    [
        ("builtin/echo", 32_000),
        ("openai/gpt-4o-mini", 128_000),
        ("openai/gpt-5-mini", 272_000),
        ("openai/gpt-5.4-mini", 272_000),
        ("openai/gpt-5.4", 922_000),
        ("openai/gpt-5.6-sol", 922_000),
        ("openai/gpt-6-luna", 922_000),
        ("openrouter/openai/gpt-6.2-sol", 922_000),
        ("anthropic/claude-3-5-haiku-20241022", 200_000),
        ("anthropic/claude-sonnet-4-20250514", 200_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("openrouter/anthropic/claude-sonnet-4-5", 200_000),
        ("openrouter/anthropic/claude-3.7-sonnet", 200_000),
        ("openrouter/anthropic/claude-opus-4.5", 200_000),
        ("openrouter/anthropic/claude-opus-4.6", 1_000_000),
        ("anthropic/claude-sonnet-4-6", 1_000_000),
        ("anthropic/claude-haiku-5-5", 1_000_000),
        ("anthropic/claude-fable-5-2", 1_000_000),
        ("google_ai/gemini-2.5-pro", 1_048_576),
        ("google_ai/gemini-4-argon", 1_048_576),
        ("xai/grok-4", 256_000),
        ("xai/grok-4-fast-reasoning", 256_000),
        ("xai/grok-4.3", 1_000_000),
        ("xai/grok-4.20-0309-reasoning", 1_000_000),
        ("xai/grok-4.7", 500_000),
        ("xai/grok-5", 500_000),
        ("deepseek/deepseek-chat", 128_000),
        ("deepseek/deepseek-flash", 1_000_000),
        ("openrouter/deepseek/deepseek-v4-pro", 1_000_000),
        ("mistral/mistral-large-2411", 128_000),
        ("mistral/mistral-medium-latest", 256_000),
        ("zai/glm-4.7", 200_000),
        ("zai/glm-5.1", 200_000),
        ("together/zai-org/GLM-5.3", 1_000_000),
        ("minimax/MiniMax-M2.7", 200_000),
        ("minimax/MiniMax-M3", 1_000_000),
        ("vllm/something-new", 128_000),
        ("openrouter/openai/o100", 128_000),
    ],
)
def test_windows(handle: str, window: int) -> None:
    assert context_window_of(handle) == window


@pytest.mark.parametrize(
    ("handle", "thinks", "responses", "temperature", "parallel"),
    [
        ("openai/gpt-4o-mini", False, False, True, True),
        ("openai/gpt-5.1-codex", True, True, False, True),
        ("openai/gpt-5.6-terra", True, True, False, True),
        ("openai/gpt-6", True, True, False, True),
        ("openai/gpt-6.2-astra", True, True, False, True),
        ("openrouter/openai/gpt-6-luna", True, True, False, True),
        ("azure/gpt-35-turbo", True, False, True, True),
        ("openrouter/openai/o3-mini:free", True, True, False, False),
        ("openai/o100", True, False, True, True),
        ("anthropic/claude-3-7-sonnet-20250219", True, False, True, True),
        ("anthropic/claude-3-5-sonnet-20240620", False, False, True, True),
        ("openrouter/anthropic/claude-3.5-haiku", False, False, True, True),
        ("google_ai/gemini-2.0-flash", False, False, True, True),
        ("vllm/something-new", True, False, True, True),
        ("vllm/slow", True, False, True, True),
        ("builtin/slow", False, False, True, True),
        ("builtin/scripted", True, False, True, True),
    ],
)
def test_what_a_name_tells(handle: str, thinks: bool, responses: bool, temperature: bool, parallel: bool) -> None:
    family = family_of(handle)
    assert (family.can_think, family.uses_responses) == (thinks, responses)
    assert (family.takes_temperature, family.takes_parallel_tool_calls) == (temperature, parallel)


def test_every_known_model_belongs_to_a_family() -> None:
    assert [model.handle for model in MODELS if not model.family.pattern] == []


@pytest.mark.parametrize(
    "retired",
    ["gpt-5", "gpt-5-mini", "o3", "o4-mini", "claude-3", "claude-opus-4-1", "gemini-2.5", "text-embedding-004",
     "grok-4", "deepseek-chat", "deepseek-reasoner", "MiniMax-M2.7", "Qwen/Qwen2.5-72B-Instruct-Turbo"],
)  # fmt: skip
def test_lists_offered_models_that_their_providers_had_retired(retired: str) -> None:
    names = [known.name for known in (*MODELS, *EMBEDDINGS)]
    assert retired not in names
    assert not any(name.startswith(f"{retired}-") for name in names)


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_of_a_known_model_fits_into_its_window(model: KnownModel) -> None:
    assert 0 < model.max_output_tokens <= model.window / 2


def test_a_handle_is_split_at_the_first_slash() -> None:
    assert split_handle("openrouter/meta-llama/llama-3") == ("openrouter", "meta-llama/llama-3")
    for handle in ("gpt-4o", "acme/giant", "openai/", ""):
        with pytest.raises(ValueError, match="providers are builtin"):
            split_handle(handle)


def test_a_provider_is_configured_by_its_key_or_by_its_address() -> None:
    def configured(environment: dict[str, str]) -> set[str]:
        return {name for name, provider in PROVIDERS.items() if provider.is_configured(environment)}

    assert configured({}) == {"builtin", "code"}
    assert configured({"GEMINI_API_KEY": "k", "OPENAI_API_KEY": ""}) == {"builtin", "code", "gemini", "google_ai"}
    assert configured({"OLLAMA_BASE_URL": "http://127.0.0.1:1/v1"}) == {"builtin", "code", "ollama"}


def test_models_that_nobody_had_chosen_came_first_in_lists() -> None:
    environment = {"GROQ_API_KEY": "k", "OPENAI_API_KEY": "k", "OLLAMA_BASE_URL": "http://h"}
    offered = OfferedModels(environment, builtin=True, code_agents=CodeAgentNames(cast("Any", None), cast("Any", None)))
    listed = [model.handle for model in offered.listed(FoundModels())]
    assert listed[0].startswith("openai/")
    assert [handle for handle in listed if handle.startswith("builtin/")] == listed[-3:]
    assert {handle.partition("/")[0] for handle in listed} == {"openai", "groq", "builtin"}


def test_what_is_shown_of_an_address_has_no_credentials() -> None:
    environment = {"OPENAI_BASE_URL": "https://user:secret@proxy/v1?key=secret", "OLLAMA_BASE_URL": "http://[::1"}
    assert PROVIDERS["openai"].url(environment) == "https://proxy/v1"
    assert PROVIDERS["ollama"].url(environment) == "http://[::1/v1"
    assert PROVIDERS["vllm"].url(environment) is None

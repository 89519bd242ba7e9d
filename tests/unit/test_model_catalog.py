"""Handles, windows, and which providers are configured."""

import pytest

from shared.domain.model_catalog import MODELS, PROVIDERS, context_window_of, split_handle


@pytest.mark.parametrize(
    ("handle", "window"),
    [
        ("builtin/echo", 32_000),
        ("openai/gpt-4o-mini", 128_000),
        ("openai/gpt-5-mini", 272_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("openrouter/anthropic/claude-sonnet-4-5", 200_000),
        ("google_ai/gemini-2.5-pro", 1_048_576),
        ("vllm/something-new", 128_000),
    ],
)
def test_windows(handle: str, window: int) -> None:
    assert context_window_of(handle) == window


def test_a_known_model_has_the_window_of_its_family() -> None:
    for model in MODELS:
        assert context_window_of(f"{model.provider}/{model.name}") == model.context_window


def test_a_handle_is_split_at_the_first_slash() -> None:
    assert split_handle("openrouter/meta-llama/llama-3") == ("openrouter", "meta-llama/llama-3")
    for handle in ("gpt-4o", "acme/giant", "openai/", ""):
        with pytest.raises(ValueError, match="providers are builtin"):
            split_handle(handle)


def test_a_provider_is_configured_by_its_key_or_by_its_address() -> None:
    def configured(environment: dict[str, str]) -> set[str]:
        return {name for name, provider in PROVIDERS.items() if provider.is_configured(environment)}

    assert configured({}) == {"builtin"}
    assert configured({"GEMINI_API_KEY": "k", "OPENAI_API_KEY": ""}) == {"builtin", "gemini", "google_ai"}
    assert configured({"OLLAMA_BASE_URL": "http://127.0.0.1:1/v1"}) == {"builtin", "ollama"}

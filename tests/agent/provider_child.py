"""A process that talks to a provider until it is killed; run by test_providers.

    python -m tests.agent.provider_child STORE PROVIDER URL PROMPT

It prints a line of JSON for every event, when it happens: its kind, and its text.
"""

import json
import sys
import time
from collections.abc import Callable

import holdfast
from holdfast.agent import Agent, Limits, Model, Retry
from holdfast.agent.models.anthropic_model import AnthropicModel
from holdfast.agent.models.openai_model import OpenAIModel

SYSTEM = "You are a harbour master."
FAST = Retry(base=0.01, max=0.05, jitter=0.0)


def model_of(provider: str, url: str) -> Model:
    """A model of this provider, served by aimock."""
    if provider == "openai":
        return OpenAIModel("gpt-4o", base_url=f"{url}/v1", api_key="sk-test-key")
    return AnthropicModel("claude-sonnet-4-5", base_url=url, api_key="sk-test-key")


def depth(at: str) -> str:
    """Measure how deep the water is."""
    return f"{len(at)} m at {at}"


def tide(harbour: str, seconds: float = 0.0) -> str:
    """Look when the tide turns."""
    time.sleep(seconds)
    return f"high water in {harbour} at noon"


def agent_of(model: Model, *, retry: Retry = FAST, limits: Limits | None = None) -> Agent:
    """The agent of these tests."""
    tools: list[Callable[..., object]] = [depth, tide]
    return Agent(model, tools=tools, system=SYSTEM, retry=retry, limits=limits, titles=False)


def main() -> None:
    """Answer one prompt."""
    path, provider, url, prompt = sys.argv[1:]
    with holdfast.open(path) as store, agent_of(model_of(provider, url)) as agent:
        for event in agent.stream(store.session("talk"), prompt):
            told = [type(event).__name__, getattr(event, "text", None)]
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

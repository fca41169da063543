"""Chat messages, typed as vLLM types them, so that body errors list the same alternatives."""

from __future__ import annotations

from typing import Any, Literal, Required, TypeAlias

from pydantic import BaseModel
from typing_extensions import TypedDict

Content: TypeAlias = str | list[dict[str, Any]]


class ChatCompletionDeveloperMessageParam(TypedDict, total=False):
    """OpenAI's developer message."""

    content: Required[Content]
    role: Required[Literal["developer"]]
    name: str


class ChatCompletionSystemMessageParam(TypedDict, total=False):
    """OpenAI's system message."""

    content: Required[Content]
    role: Required[Literal["system"]]
    name: str


class ChatCompletionUserMessageParam(TypedDict, total=False):
    """OpenAI's user message."""

    content: Required[Content]
    role: Required[Literal["user"]]
    name: str


class ChatCompletionAssistantMessageParam(TypedDict, total=False):
    """OpenAI's assistant message."""

    role: Required[Literal["assistant"]]
    content: Content | None
    name: str
    refusal: str | None
    tool_calls: list[dict[str, Any]] | None


class ChatCompletionToolMessageParam(TypedDict, total=False):
    """OpenAI's tool result."""

    content: Required[Content]
    role: Required[Literal["tool"]]
    tool_call_id: Required[str]


class ChatCompletionFunctionMessageParam(TypedDict, total=False):
    """OpenAI's former function result."""

    content: Required[str | None]
    name: Required[str]
    role: Required[Literal["function"]]


class CustomChatCompletionMessageParam(TypedDict, total=False):
    """vLLM's message of any role."""

    role: Required[str]
    content: Content
    name: str
    tool_call_id: str | None
    tool_calls: list[dict[str, Any]] | None
    reasoning: str | None


class Message(BaseModel):
    """The message of the Harmony library, which vLLM takes too."""

    author: dict[str, Any]
    content: list[dict[str, Any]]


ChatMessage: TypeAlias = (
    ChatCompletionDeveloperMessageParam
    | ChatCompletionSystemMessageParam
    | ChatCompletionUserMessageParam
    | ChatCompletionAssistantMessageParam
    | ChatCompletionToolMessageParam
    | ChatCompletionFunctionMessageParam
    | CustomChatCompletionMessageParam
    | Message
)

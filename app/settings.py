"""Settings of the service, from environment variables with the prefix VLLM_ADMISSION_."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything that can be configured; built once by the edge and passed on.

    Attributes are documented in docs/settings.md, which is generated from the descriptions.
    """

    model_config = SettingsConfigDict(
        env_prefix="VLLM_ADMISSION_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    backend_url: str | None = Field(
        None, description="Base URL of the vLLM backend. Without it proxied routes answer 503."
    )
    serve_config: str | None = Field(
        None,
        description="The configuration the backend runs with, which requests are checked "
        "against: a file, or the text itself, in any proposal form.",
    )
    vllm_version: str | None = Field(
        None, description="The vLLM version assumed where a proposal names none; default newest."
    )
    catalogue_dir: Path | None = Field(
        None, description="A directory of catalogues of forks and nightlies, beside the shipped."
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024, gt=0, description="Largest body taken by /validate, in bytes."
    )
    max_replay_bytes: int = Field(
        256 * 1024 * 1024, gt=0, description="Largest body taken by /replay, in bytes."
    )
    max_request_bytes: int = Field(
        64 * 1024 * 1024, gt=0, description="Largest request body relayed, in bytes."
    )
    connect_timeout: float = Field(
        5.0, gt=0, description="Seconds to wait for a connection to the backend."
    )
    idle_timeout: float = Field(
        600.0, gt=0, description="Seconds to wait for the next bytes of the backend."
    )
    log_level: str = Field("info", description="Log level: debug, info, warning or error.")

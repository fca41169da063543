"""A proposal in the form it came in, as the members of an envelope."""

from __future__ import annotations

from typing import Any

from app.proposal.proposal import Form, Proposal


def render(proposal: Proposal) -> dict[str, Any]:
    """Give the member that its form is named after, with `env` and `files` beside it.

    `env` has the variables that the shell text does not assign itself; `files` those texts that
    were given along. What is empty is left out. `read_envelope` reads it back.
    """
    body: dict[str, Any] = {}
    if proposal.form is Form.COMMAND:
        body["command"] = proposal.source or ""
    elif proposal.form is Form.ARGS:
        body["args"] = [word.text for word in proposal.words]
    elif proposal.form in {Form.COMPOSE, Form.PYTHON, Form.KUBERNETES}:
        body[proposal.form.value] = proposal.source or ""
    elif proposal.form is Form.CONFIG:
        body["config"] = dict(proposal.kwargs or {})
    else:
        body["config_yaml"] = proposal.yaml.text if proposal.yaml is not None else ""
    written_in = proposal.command.source if proposal.command is not None else None
    environment = {
        name: variable.value
        for name, variable in proposal.environment.items()
        if variable.location.source not in {written_in or "", *proposal.files}
    }
    if environment:
        body["env"] = environment
    files = {n: text for n, text in proposal.files.items() if n not in proposal.file_texts}
    if files and proposal.form is not Form.CONFIG_YAML:
        body["files"] = files
    return body

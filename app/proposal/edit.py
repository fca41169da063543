"""Applying fixes to a proposal in its own form, changing as little as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.catalogue import Catalogue
from app.proposal.changes import KwargsWriter
from app.proposal.edit_kwargs import edit_kwargs
from app.proposal.edit_python import edit_python
from app.proposal.edit_text import reread, set_variable, unset_variable
from app.proposal.edit_words import edit_words, edit_words_at_once, replaced_words
from app.proposal.edit_yaml import edit_yaml
from app.proposal.proposal import Form, Proposal
from app.verdict.fix import Edit, ReplaceArgument, SetEnvironment, UnsetEnvironment


def apply_edits(proposal: Proposal, edits: Iterable[Edit], catalogue: Catalogue) -> Proposal:
    """Give the proposal with the edits applied, one after the other.

    What the user wrote is kept: spelling, order, quotes, line breaks and comments outside the
    edited words. An edit that does not apply (a flag to remove that is not given, an index past
    the end) changes nothing. Replaced words come first, so that their indices still hold.
    """
    edits = list(edits)
    words = {e.at: e.text for e in edits if isinstance(e, ReplaceArgument) and _is_word(e)}
    proposal = replaced_words(proposal, words)
    rest = [edit for edit in edits if not (isinstance(edit, ReplaceArgument) and _is_word(edit))]
    rest = sorted(rest, key=lambda edit: not isinstance(edit, ReplaceArgument))
    if len(rest) > 1 and _is_command_line(proposal):
        at_once = edit_words_at_once(proposal, rest, catalogue)
        if at_once is not None:
            return at_once
    for edit in rest:
        proposal = _apply(proposal, edit, catalogue)
    return proposal


def _edit_held_kwargs(proposal: Proposal, edit: Edit) -> Proposal:
    """Edit engine arguments that a text around them holds."""
    writer, before = proposal.writer, proposal.kwargs or {}
    after = edit_kwargs(before, edit)
    if not isinstance(writer, KwargsWriter) or repr(before) == repr(after):
        return proposal
    edited = reread(proposal, writer.kwargs(after))
    return edited if edited.kwargs == after else proposal


def _is_command_line(proposal: Proposal) -> bool:
    return proposal.form not in {Form.PYTHON, Form.CONFIG, Form.CONFIG_YAML} and (
        proposal.kwargs is None
    )


def _is_word(edit: ReplaceArgument) -> bool:
    return isinstance(edit.at, int)


def _apply(proposal: Proposal, edit: Edit, catalogue: Catalogue) -> Proposal:
    if isinstance(edit, SetEnvironment):
        return set_variable(proposal, edit.variable, edit.value)
    if isinstance(edit, UnsetEnvironment):
        return unset_variable(proposal, edit.variable)
    if proposal.form is Form.PYTHON:
        return edit_python(proposal, edit)
    if proposal.form is Form.KUBERNETES and proposal.kwargs is not None:
        return _edit_held_kwargs(proposal, edit)
    if proposal.form is Form.CONFIG:
        kwargs: Mapping[str, Any] = edit_kwargs(proposal.kwargs or {}, edit)
        return replace(proposal, kwargs=kwargs)
    if proposal.form is Form.CONFIG_YAML:
        return edit_yaml(proposal, edit, catalogue)
    return edit_words(proposal, edit, catalogue)

"""What the engine says about replay and its runner, read from syntax trees."""

from __future__ import annotations

import ast
from textwrap import dedent, indent
from typing import Any

import pytest

from app.catalogue.extraction.engine_rules import expert_count_keys, replay_facts, runner_facts

NOTHING = ast.parse("")


def method(name: str, body: str) -> ast.Module:
    return ast.parse(
        f"class C:\n    def {name}(self, params=None):\n" + indent(dedent(body), " " * 8)
    )


def messages(body: str, name: str = "_verify_sampling_replay_config") -> dict[str, str]:
    return dict(replay_facts(method(name, body), NOTHING)["messages"])


def runner(source: str) -> dict[str, Any]:
    return runner_facts(ast.parse(dedent(source)))


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("not self.use_v2_model_runner", "needs_v2_runner"),
        ("self.speculative_config is not None", "speculative_decoding"),
        ("spec is not None and spec.enable_adaptive_verification", "adaptive_verification"),
        ("self.model_config.is_diffusion", "diffusion"),
        ("self.model_config.logits_processors", "custom_logits_processors"),
        ("self.model_config.logprobs_mode != 'processed_logprobs'", "processed_logprobs"),
        ("self.model_config.sheep", "replay_is_not_possible"),
    ],
)
def test_a_rule_is_named_after_what_its_condition_looks_at(condition: str, name: str) -> None:
    body = f"""
    spec = self.speculative_config
    if {condition}:
        raise ValueError("replay is "
                         "not possible")
    """
    assert messages(body) == {name: "replay is not possible"}


def test_two_rules_of_one_condition_are_both_kept() -> None:
    body = """
    if self.model_config.is_diffusion:
        if self.x:
            raise ValueError("first text")
        raise ValueError("second text")
    """
    assert messages(body) == {"diffusion": "first text", "diffusion_second_text": "second text"}


def test_blockers_of_batch_sharding_become_templates() -> None:
    body = """
    tp_size = self.parallel_config.tensor_parallel_size
    if self.scheduler_config.max_num_seqs < tp_size:
        blockers.append(f"max_num_seqs ({self.scheduler_config.max_num_seqs}) < ({tp_size})")
    if self.model_config.return_sampling_mask:
        blockers.append("masks are not forwarded")
    if blockers:
        raise ValueError(f"not supported: {'; '.join(blockers)}.")
    """
    assert messages(body, "_validate_batch_sharded_sampling") == {
        "batch_sharded_max_num_seqs": "max_num_seqs ({max_num_seqs}) < ({tp_size})",
        "batch_sharded_sampling_mask": "masks are not forwarded",
        "batch_sharded_blocked": "not supported: {blockers}.",
    }


def test_request_rules_are_those_under_the_replay_switch() -> None:
    body = """
    if self.model_config.return_sampling_mask:
        if params.temperature <= 0:
            raise ValueError("warm, please")
        if params.top_k <= 0:
            raise ValueError("bounded, please")
    if params.top_k > 5:
        raise ValueError("another rule")
    """
    found = replay_facts(NOTHING, method("_validate_params", body))["messages"]
    assert found == {"temperature": "warm, please", "top_k": "bounded, please"}


def test_a_version_without_replay_has_no_messages() -> None:
    assert replay_facts(NOTHING, NOTHING) == {"messages": {}}


def test_literal_braces_survive_the_template() -> None:
    assert messages("if self.is_diffusion:\n    raise ValueError('{x}')") == {"diffusion": "{{x}}"}


def test_the_choice_of_runner_is_a_list_of_steps_in_order() -> None:
    facts = runner(
        """
        class C:
            def use_v2_model_runner(self):
                forced = envs.VLLM_USE_V2_MODEL_RUNNER
                if forced is not None:
                    return forced
                if self.speculative_config.method in ("dspark",):
                    return True
                if not self._is_default():
                    return False
                return True

            def _is_default(self):
                return self.model_config.runner_type == "generate"
        """
    )
    assert facts["decision"] == [
        {
            "reads": ["envs.VLLM_USE_V2_MODEL_RUNNER"],
            "gives": {"reads": ["envs.VLLM_USE_V2_MODEL_RUNNER"]},
        },
        {
            "reads": ["speculative_config.method"],
            "compared": {"speculative_config.method": {"in": ["dspark"]}},
            "gives": True,
        },
        {"reads": ["_is_default"], "gives": False},
        {"gives": True},
    ]
    assert facts["helpers"] == {
        "_is_default": [
            {
                "gives": {
                    "reads": ["model_config.runner_type"],
                    "compared": {"model_config.runner_type": {"in": ["generate"]}},
                }
            }
        ]
    }


def test_features_that_a_runner_lacks_say_what_they_depend_on() -> None:
    facts = runner(
        """
        class C:
            def _get_v2_model_runner_unsupported_features(self):
                unsupported = []
                if self.speculative_config is not None:
                    if self.speculative_config.method not in ("eagle", "mtp"):
                        unsupported.append(f"method '{self.speculative_config.method}'")
                if self.compilation_config.mode == CompilationMode.STOCK:
                    unsupported.append("stock torch.compile")
                if self.parallel_config.use_ubatching:
                    unsupported.extend(self._get_dbo_unsupported_features())
                return unsupported

            def _get_dbo_unsupported_features(self):
                if envs.VLLM_USE_V2_MODEL_RUNNER is None:
                    return ["dual batch overlap"]
                return []
        """
    )
    assert facts["unsupported"] == {
        "v2": [
            {
                "label": "method '{method}'",
                "reads": ["speculative_config.method"],
                "compared": {"speculative_config.method": {"not_in": ["eagle", "mtp"]}},
            },
            {
                "label": "stock torch.compile",
                "reads": ["compilation_config.mode"],
                "compared": {"compilation_config.mode": {"in": ["STOCK"]}},
            },
            {"includes": "dbo", "reads": ["parallel_config.use_ubatching"]},
        ],
        "dbo": [{"label": "dual batch overlap", "reads": ["envs.VLLM_USE_V2_MODEL_RUNNER"]}],
    }


def test_draft_architectures_are_read_from_either_spelling() -> None:
    facts = runner(
        """
        class C:
            def _get_v1_model_runner_unsupported_features(self):
                unsupported = []
                draft = self.speculative_config.draft_model_config
                if "OneDraft" in (draft.architectures or []):
                    unsupported.append("one")
                if {"TwoDraft"}.intersection(draft.architectures or []):
                    unsupported.append("two")
        """
    )
    path = "speculative_config.draft_model_config.architectures"
    assert [feature["compared"] for feature in facts["unsupported"]["v1"]] == [
        {path: {"contains": ["OneDraft"]}},
        {path: {"contains": ["TwoDraft"]}},
    ]


def test_architecture_lists_tell_the_default_from_the_rocm_exception() -> None:
    facts = runner(
        """
        DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset({"B", "A"})
        UNRELATED = {"C"}

        def default_v2_model_runner_architectures():
            if current_platform.is_rocm():
                return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES - {"B"}
            return DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES
        """
    )
    assert facts["default_v2_architectures"] == ["A", "B"]
    assert facts["rocm_v1_architectures"] == ["B"]
    later = runner("ROCM_DEFAULT_MRV1_ARCHITECTURES = frozenset({'D'})")
    assert later["default_v2_architectures"] == []
    assert later["rocm_v1_architectures"] == ["D"]


def test_what_the_choice_of_runner_logs_is_kept_with_its_placeholder() -> None:
    facts = runner(
        """
        class C:
            def use_v2_model_runner(self):
                if not HAS_TRITON:
                    logger.warning_once("no Triton, 100%% sure")
                    return False
                unsupported = self._get_v2_model_runner_unsupported_features()
                if unsupported:
                    logger.warning_once("V2 lacks %s; using V1", ", ".join(unsupported))
                    return False
                return True

            def _validate_v2_model_runner(self):
                unsupported = self._get_v2_model_runner_unsupported_features()
                if unsupported:
                    raise ValueError(f"V2 lacks: {', '.join(unsupported)}")
        """
    )
    assert facts["messages"] == {
        "choice_needs_triton": "no Triton, 100%% sure",
        "choice_unsupported": "V2 lacks {unsupported}; using V1",
        "v2_unsupported": "V2 lacks: {unsupported}",
    }


@pytest.mark.parametrize("table", ["here", "imported"])
def test_expert_keys_are_found_in_the_function_or_in_its_table(table: str) -> None:
    inline = "def get_num_experts(self):\n    names = ['num_experts', 'n_routed_experts']"
    indirect = "def get_num_experts(self):\n    names = ALIASES['num_experts']"
    aliases = "ALIASES: dict = {'x': ('y',), 'num_experts': ('num_experts', 'n_routed_experts')}"
    found = (
        expert_count_keys(ast.parse(inline))
        if table == "here"
        else expert_count_keys(ast.parse(indirect), ast.parse(aliases))
    )
    assert found == ["num_experts", "n_routed_experts"]
    assert expert_count_keys(NOTHING) == []

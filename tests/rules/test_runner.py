"""Which model runner, why, and what that rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.catalogue import Catalogue, CatalogueLibrary, RunnerStep
from app.proposal.proposal import Hardware, Proposal
from app.proposal.shell import parse_command
from app.rules.runner import Reason, Runner, RunnerDecision, decide_runner, runner_variable
from app.rules.runner_features import Moment, support_of
from app.serve_config.resolve import resolve
from app.serve_config.serve_config import Abstain, ServeConfig, UnresolvedValue

LIBRARY = CatalogueLibrary()
ALL = LIBRARY.versions
DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
EXPERTS = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
LISTED = {"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 60}
HYBRID = {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["mamba", "attention"]}
ALL_ATTENTION = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "layer_types": ["attention"],
    "num_local_experts": 0,
}
LISTED_HYBRID = {"architectures": ["KimiK3ForConditionalGeneration"]}
LISTED_BUT_NOT_ON_ROCM = {"architectures": ["DeepseekV4ForCausalLM"], "n_routed_experts": 8}
STATE_SPACE = {"architectures": ["Mamba2ForCausalLM"]}
POOLING = {"architectures": ["BertModel"]}
DIFFUSION = {"architectures": ["LLaDAModelLM"], "canvas_length": 128}


def config_of(proposal: Proposal, catalogue: Catalogue) -> ServeConfig:
    config = resolve(proposal, catalogue).config
    assert config is not None
    return config


def decide(
    command: str,
    version: str,
    model: dict[str, Any] | None = None,
    gpu: str | None = "NVIDIA H100",
    moment: Moment = Moment.REPLAY_CHECK,
) -> RunnerDecision:
    proposal = replace(
        parse_command(command),
        model_config=model,
        hardware=None if gpu is None else Hardware(gpu),
    )
    return decide_runner(config_of(proposal, LIBRARY.get(version)), moment)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize(("text", "runner"), [("0", Runner.V1), ("1", Runner.V2), ("2", Runner.V2)])
def test_the_environment_decides_over_every_default(
    version: str, text: str, runner: Runner
) -> None:
    decision = decide(f"VLLM_USE_V2_MODEL_RUNNER={text} vllm serve m --enable-dbo", version)
    assert decision.version is runner
    assert decision.reason is Reason.ENVIRONMENT
    assert decision.place is not None
    assert not decision.presumes


@pytest.mark.parametrize("version", ALL)
def test_a_dense_model_runs_on_v2_everywhere(version: str) -> None:
    decision = decide("vllm serve m", version, DENSE)
    assert (decision.version, decision.reason) == (Runner.V2, Reason.DEFAULT)
    assert version in decision.because


@pytest.mark.parametrize(
    ("model", "runner"),
    [
        (EXPERTS, Runner.V1),
        (LISTED, Runner.V2),
        (HYBRID, Runner.V1),
        (LISTED_HYBRID, Runner.V2),
        (ALL_ATTENTION, Runner.V2),
        (STATE_SPACE, Runner.V1),
        (POOLING, Runner.V1),
        (DIFFUSION, Runner.V2),
        ({"architectures": ["MixtralForCausalLM"], "text_config": {"num_local_experts": 8}}, "V1"),
    ],
)
def test_only_0_28_decides_by_the_model(model: dict[str, Any], runner: Runner) -> None:
    assert decide("vllm serve m", "0.28.0", model).version == runner
    assert decide("vllm serve m", "0.29.0", model).version is Runner.V2


@pytest.mark.parametrize(("gpu", "runner"), [("NVIDIA H100", Runner.V2), ("AMD MI300X", Runner.V1)])
def test_0_28_lists_one_model_for_nvidia_only(gpu: str, runner: Runner) -> None:
    decision = decide("vllm serve m", "0.28.0", LISTED_BUT_NOT_ON_ROCM, gpu)
    assert (decision.version, decision.forced) == (runner, False)


def test_a_model_that_nobody_described_leaves_0_28_open() -> None:
    decision = decide("vllm serve m", "0.28.0")
    assert decision.version is None
    assert "config.json" in decision.open_questions[0]
    assert decision.as_json()["needs"] == list(decision.open_questions)


@pytest.mark.parametrize("option", ["--enable-dbo", "--enable-prompt-embeds"])
def test_what_v2_lacks_decides_0_28_without_knowing_the_model(option: str) -> None:
    assert decide(f"vllm serve m {option}", "0.28.0").reason is Reason.FEATURES


def test_overrides_of_config_json_count_as_the_model() -> None:
    command = """vllm serve m --hf-overrides '{"architectures": ["Qwen2MoeForCausalLM"]}'"""
    assert decide(command, "0.28.0", EXPERTS).version is Runner.V2


def test_an_expert_count_left_at_its_default_is_not_guessed() -> None:
    assert decide("vllm serve m", "0.28.0", {"architectures": ["Qwen3MoeForCausalLM"]}).version is (
        None
    )


@pytest.mark.parametrize("version", ALL)
def test_a_cpu_has_no_triton(version: str) -> None:
    decision = decide("vllm serve m", version, DENSE, gpu="cpu")
    assert (decision.version, decision.reason) == (Runner.V1, Reason.TRITON)


@pytest.mark.parametrize("version", ALL)
def test_without_hardware_a_gpu_is_presumed_and_that_is_said(version: str) -> None:
    decision = decide("vllm serve m", version, DENSE, gpu=None)
    assert decision.version is Runner.V2
    assert "no `hardware` is given" in decision.presumes[0]


@pytest.mark.parametrize(
    ("version", "runner"), [("0.29.0", Runner.V1), ("0.31.0", Runner.V1), ("0.32.0", Runner.V2)]
)
def test_rocm_keeps_some_models_on_v1_up_to_0_31(version: str, runner: Runner) -> None:
    model = {"architectures": ["DeepseekV32ForCausalLM"], "n_routed_experts": 256}
    assert decide("vllm serve m", version, model, gpu="AMD Instinct MI300X").version is runner
    assert decide("vllm serve m", version, model).version is Runner.V2


def test_0_31_skips_the_rocm_default_where_v1_cannot_serve() -> None:
    command = "vllm serve m -tp 2 --enable-batch-sharded-sampling"
    model = {"architectures": ["DeepseekV32ForCausalLM"], "n_routed_experts": 256}
    assert decide(command, "0.30.0", model, gpu="MI300X").version is Runner.V1
    assert decide(command, "0.31.0", model, gpu="MI300X").version is Runner.V2


@pytest.mark.parametrize("version", [v for v in ALL if v >= "0.30"])
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("""--attention-config '{"hisparse_config": {}}'""", Reason.HISPARSE),
        ("""--watermark-config '{"key": 1}'""", Reason.WATERMARK),
    ],
)
def test_what_exists_only_on_v2_decides_before_the_environment(
    version: str, option: str, reason: Reason
) -> None:
    decision = decide(f"VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m {option}", version)
    assert (decision.version, decision.reason) == (Runner.V2, reason)
    assert decision.forced


NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
MEDUSA = (
    """--speculative-config '{"method": "medusa", "model": "o/m", "num_speculative_tokens": 3}'"""
)
PARALLEL = (
    """--speculative-config '{"method": "eagle", "model": "o/m", "parallel_drafting": true}'"""
)


@pytest.mark.parametrize(
    ("options", "label", "versions"),
    [
        ("-cc.mode=1", "stock torch.compile", ALL[:4]),
        ("-tp 2 -cc.pass_config.enable_sp=true", "sequence parallelism", ALL[:4]),
        (
            "-pp 2 --distributed-executor-backend external_launcher",
            "pipeline parallelism with external_launcher",
            ALL,
        ),
        (NGRAM, "ngram/ngram_gpu speculative decoding", ALL[:2]),
        (NGRAM, "speculative method 'ngram'", ALL[2:4]),
        (MEDUSA, "speculative method 'medusa'", ALL[:5]),
        (PARALLEL, "parallel drafting for EAGLE speculative decoding", ALL),
        ("--enable-dbo", "dual batch overlap", ALL),
        ("--ubatch-size 2", "dual batch overlap", ALL[2:]),
        ("--enable-elastic-ep", "elastic expert parallelism", ALL[:4]),
        ("--logits-processors a.b:C", "custom logits processors", ALL[:3]),
        ("--enable-prompt-embeds", "prompt embeds", ALL[:1]),
        ("--kv-sharing-fast-prefill", "KV sharing fast prefill", ALL[:2]),
        ("--mamba-cache-mode all", "mamba cache mode 'all'", ALL[2:4]),
    ],
)
def test_a_feature_takes_the_runner_back_on_the_versions_that_lack_it(
    options: str, label: str, versions: tuple[str, ...]
) -> None:
    for version in ALL:
        if "--mamba-cache-mode all" in options and version >= "0.32":
            continue  # the choice is gone
        decision = decide(f"vllm serve m {options}", version, DENSE)
        labels = [feature.label for feature in decision.unsupported]
        assert (label in labels) is (version in versions), (version, labels)
        assert (decision.version is Runner.V1) is bool(labels)


def test_a_feature_says_which_settings_switch_it_on() -> None:
    decision = decide("vllm serve m --enable-dbo", "0.33.0", DENSE)
    (feature,) = decision.unsupported
    assert feature.dests == ("enable_dbo",)
    assert decision.place is not None


@pytest.mark.parametrize("version", ALL[:4])
def test_eager_mode_turns_stock_compilation_off_only_after_the_replay_check(version: str) -> None:
    command = "vllm serve m -cc.mode=STOCK_TORCH_COMPILE --enforce-eager"
    assert decide(command, version, DENSE).version is Runner.V1
    assert decide(command, version, DENSE, moment=Moment.LAST_CHECK).version is Runner.V2


@pytest.mark.parametrize("version", ALL[:4])
def test_fused_communication_flips_the_runner_after_the_replay_check(version: str) -> None:
    command = (
        "vllm serve m -tp 2 -cc.pass_config.fuse_gemm_comms=true -cc.pass_config.sp_min_token_num=8"
    )
    assert decide(command, version, DENSE).version is Runner.V2
    assert decide(command, version, DENSE, moment=Moment.LAST_CHECK).version is Runner.V1


def test_a_draft_that_nobody_described_is_presumed_harmless() -> None:
    options = """--speculative-config '{"model": "org/draft", "num_speculative_tokens": 3}'"""
    decision = decide(f"vllm serve m {options}", "0.32.0", DENSE)
    assert decision.version is Runner.V2
    assert "the draft model's config.json (`draft_model_config`)" in decision.presumes


def test_an_unresolved_variable_is_an_open_question() -> None:
    with pytest.raises(UnresolvedValue, match="RUNNER"):
        decide("VLLM_USE_V2_MODEL_RUNNER=$RUNNER vllm serve m", "0.32.0")


def test_unknown_hardware_does_not_decide() -> None:
    decision = decide("vllm serve m", "0.32.0", DENSE, gpu="TPU v5e")
    assert decision.version is Runner.V2
    assert "whether Triton works on this hardware" in decision.presumes


def test_a_catalogue_without_runner_facts_leaves_the_question_open() -> None:
    catalogue = LIBRARY.get("0.32.0")
    bare = msgspec.structs.replace(catalogue, runner=type(catalogue.runner)())
    assert decide_runner(config_of(parse_command("vllm serve m"), bare)).version is None


def test_a_step_that_is_not_known_is_presumed_not_to_apply() -> None:
    catalogue = LIBRARY.get("0.32.0")
    step = RunnerStep(reads=("model_config.is_purple",), gives=False)
    feature = RunnerStep(label="purple models", reads=("model_config.is_purple",))
    runner = msgspec.structs.replace(
        catalogue.runner,
        decision=(step, *catalogue.runner.decision),
        unsupported={**catalogue.runner.unsupported, "v2": (feature,)},
    )
    fork = msgspec.structs.replace(catalogue, runner=runner)
    decision = decide_runner(config_of(parse_command("vllm serve m"), fork))
    assert decision.version is Runner.V2
    assert "what this version does with model_config.is_purple" in decision.presumes
    assert "what this version calls 'purple models'" in decision.presumes


def test_text_that_is_no_number_in_the_variable_is_not_read_as_a_choice() -> None:
    proposal = parse_command("VLLM_USE_V2_MODEL_RUNNER=yes vllm serve m")
    config = config_of(proposal, LIBRARY.get("0.32.0"))
    with pytest.raises(Abstain, match="as a number"):
        runner_variable(config)


DSPARK = (
    """--speculative-config '{"method": "dspark", "num_speculative_tokens": 3, """
    """"enable_adaptive_verification": true}'"""
)
MULTIMODAL = {"architectures": ["Qwen2_5_VLForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("version", "runner", "options", "model", "label"),
    [
        ("0.28.0", "v2", f"--enable-lora {DSPARK}", DENSE, "adaptive verification with LoRA"),
        (
            "0.28.0",
            "v2",
            f"--enforce-eager {DSPARK}",
            DENSE,
            "adaptive verification with enforce_eager/cudagraph_mode=none",
        ),
        (
            "0.28.0",
            "v2",
            f"-pp 2 {DSPARK}",
            DENSE,
            "adaptive verification with pipeline parallelism",
        ),
        (
            "0.28.0",
            "v2",
            "--prefill-context-parallel-size 2",
            DENSE,
            "prefill context parallelism",
        ),
        ("0.32.0", "v1", DSPARK, DENSE, "dspark speculative decoding"),
        ("0.32.0", "v1", DSPARK, DENSE, "adaptive draft verification"),
        ("0.32.0", "v1", "", DIFFUSION, "diffusion models"),
        (
            "0.32.0",
            "v1",
            "-pp 2 --async-scheduling",
            DENSE,
            "pipeline parallelism with async scheduling",
        ),
        ("0.33.0", "v1", "", {"architectures": ["Step5ForCausalLM"]}, "Step5"),
        (
            "0.32.0",
            "v2",
            "--enable-dbo -dcp 2",
            DENSE,
            "dual batch overlap with context parallelism",
        ),
        ("0.32.0", "v2", "--enable-dbo", MULTIMODAL, "dual batch overlap with multimodal models"),
        ("0.32.0", "v2", "--enable-dbo", HYBRID, "dual batch overlap with hybrid models"),
        (
            "0.32.0",
            "v2",
            "--enable-dbo -cc.cudagraph_mode=piecewise",
            DENSE,
            "dual batch overlap with PIECEWISE CUDA graphs",
        ),
        (
            "0.32.0",
            "v2",
            f"--enable-dbo {NGRAM}",
            DENSE,
            "dual batch overlap with speculative decoding",
        ),
    ],
)
def test_a_runner_that_was_asked_for_is_told_what_it_lacks(
    version: str, runner: str, options: str, model: dict[str, Any], label: str
) -> None:
    proposal = replace(
        parse_command(f"VLLM_USE_V2_MODEL_RUNNER=1 vllm serve m {options}"),
        model_config=model,
        hardware=Hardware("NVIDIA H100"),
    )
    support = support_of(config_of(proposal, LIBRARY.get(version)), runner, Moment.LAST_CHECK)
    assert label in [feature.label for feature in support.unsupported]


@pytest.mark.parametrize(
    ("version", "runner", "options", "needs"),
    [
        ("0.30.0", "v2", "-tp 2 -cc.pass_config.enable_sp=true", "wide enough"),
        ("0.30.0", "v2", "-cc.mode=1", "config.json"),
        ("0.30.0", "v2", "--mamba-cache-mode all", "config.json"),
        ("0.32.0", "v1", """--spec-method dflash --spec-model o/d""", "draft model"),
        ("0.33.0", "v1", "--spec-method mtp --spec-tokens 1", "draft model"),
    ],
)
def test_what_hangs_on_an_unknown_fact_is_named_and_not_counted(
    version: str, runner: str, options: str, needs: str
) -> None:
    config = config_of(parse_command(f"vllm serve m {options}"), LIBRARY.get(version))
    support = support_of(config, runner, Moment.LAST_CHECK)
    assert support.unsupported == ()
    assert any(needs in entry for entry in support.unknown)


@pytest.mark.parametrize(
    ("environment", "lacks"),
    [
        ("", True),
        ("TORCH_COMPILE_DISABLE=1", False),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=1", False),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=0", True),
    ],
)
def test_stock_compilation_counts_unless_something_turned_it_off(
    environment: str, lacks: bool
) -> None:
    proposal = replace(
        parse_command(f"{environment} vllm serve m -cc.mode=stock_torch_compile"),
        model_config=DENSE,
    )
    support = support_of(config_of(proposal, LIBRARY.get("0.31.0")), "v2", Moment.LAST_CHECK)
    assert bool(support.unsupported) is lacks


@pytest.mark.parametrize(
    ("model", "options", "lacks"),
    [
        (DENSE, "", True),
        (HYBRID, "", True),
        (HYBRID, "--no-enable-prefix-caching", False),
        (STATE_SPACE, "", False),
        (STATE_SPACE, "--enable-prefix-caching", True),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "--enable-prefix-caching", False),
    ],
)
def test_models_with_state_space_layers_may_replace_the_mamba_cache_mode(
    model: dict[str, Any], options: str, lacks: bool
) -> None:
    proposal = replace(
        parse_command(f"vllm serve m --mamba-cache-mode all {options}"), model_config=model
    )
    support = support_of(config_of(proposal, LIBRARY.get("0.31.0")), "v2")
    assert bool(support.unsupported) is lacks


@pytest.mark.parametrize("option", ["--prefill-context-parallel-size 2", "--spec-method dspark"])
def test_0_28_takes_v2_for_what_only_v2_has(option: str) -> None:
    decision = decide(f"vllm serve m {option}", "0.28.0", EXPERTS)
    assert decision.version is Runner.V2
    assert decision.forced

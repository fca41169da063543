"""The catalogues in the repository, against counts that were taken independently of them.

The counts were made by another extraction of the same releases and by hand in their sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

import pytest

from app.catalogue import Catalogue, CatalogueLibrary
from app.catalogue.catalogue import Converter


@dataclass(frozen=True)
class Counts:
    """What one release has; `visible` leaves out the spellings that its help hides."""

    flags: int
    visible: int
    hidden: int
    tied: int
    classes: int
    fields: int
    variables: int
    architectures: int


COUNTS = {
    "0.28.0": Counts(285, 384, 0, 263, 44, 786, 295, 378),
    "0.29.0": Counts(293, 395, 0, 271, 44, 804, 302, 376),
    "0.30.0": Counts(301, 405, 0, 278, 47, 837, 302, 386),
    "0.31.0": Counts(312, 420, 0, 287, 48, 863, 308, 387),
    "0.32.0": Counts(317, 428, 0, 291, 48, 873, 316, 391),
    "0.33.0": Counts(321, 433, 50, 294, 49, 892, 318, 415),
}
LIBRARY = CatalogueLibrary()


@pytest.fixture(params=COUNTS)
def shipped(request: pytest.FixtureRequest) -> Catalogue:
    return LIBRARY.get(request.param)


def text_of(version: str) -> str:
    return (resources.files("app.catalogue") / "data" / f"vllm-{version}.json").read_text()


def test_a_release_has_as_many_facts_as_were_counted(shipped: Catalogue) -> None:
    flags = shipped.flags
    assert (
        Counts(
            flags=len(flags),
            visible=len({option for flag in flags for option in flag.options}),
            hidden=len({option for flag in flags for option in flag.hidden_options}),
            tied=sum(flag.config_class is not None for flag in flags),
            classes=len(shipped.config_classes),
            fields=sum(len(cls.fields) for cls in shipped.config_classes.values()),
            variables=len(shipped.env_vars),
            architectures=len(shipped.registries["model_archs"]),
        )
        == COUNTS[shipped.vllm_version]
    )


def test_a_file_says_how_it_was_captured(shipped: Catalogue) -> None:
    assert shipped.captured_on_platform == "cuda"
    assert shipped.captured_on_device == "9.0"
    assert shipped.capture_note
    assert set(shipped.platform_overrides) == {"cpu"}
    assert shipped.not_captured


def test_no_file_holds_a_path_of_the_machine_or_an_address(shipped: Catalogue) -> None:
    text = text_of(shipped.vllm_version)
    assert not re.search(r"/(root|home|work|tmp|Users|usr|opt)/\w", text)
    assert not re.search(r"0x[0-9a-f]{6,}", text)


def test_no_file_holds_help_texts(shipped: Catalogue) -> None:
    """Prose is kept only where the engine itself prints it."""
    text = text_of(shipped.vllm_version)
    assert '"help"' not in text
    assert '"description"' not in text
    prose = [
        line
        for line in text.splitlines()
        if re.search(r"(?:[a-z]+ ){6,}", line) and not line.startswith(('"', "{"))
    ]
    assert prose == []


@pytest.mark.parametrize("name", ["needs_v2_runner", "diffusion", "custom_logits_processors",
                                  "processed_logprobs", "temperature", "top_k"])  # fmt: skip
def test_every_release_has_the_texts_of_the_rules_of_all_releases(
    shipped: Catalogue, name: str
) -> None:
    text = shipped.engine_message(name)
    assert text is not None
    assert text.startswith("sampling distribution replay")


def test_speculative_decoding_is_admitted_from_0_32_on_but_for_adaptive_verification() -> None:
    for version in COUNTS:
        catalogue = LIBRARY.get(version)
        admits = version >= "0.32"
        assert (catalogue.engine_message("speculative_decoding") is None) is admits
        assert (catalogue.engine_message("adaptive_verification") is not None) is admits


def test_batch_sharding_learnt_of_sampling_masks_in_0_30() -> None:
    blocked = {v: LIBRARY.get(v).engine_message("batch_sharded_sampling_mask") for v in COUNTS}
    assert {version for version, text in blocked.items() if text} == {
        "0.30.0", "0.31.0", "0.32.0", "0.33.0",
    }  # fmt: skip


def test_only_0_28_chooses_the_runner_by_a_list_of_architectures() -> None:
    listed = {v: LIBRARY.get(v).runner.default_v2_architectures for v in COUNTS}
    assert "Qwen2MoeForCausalLM" in listed["0.28.0"]
    assert not any(listed[version] for version in COUNTS if version != "0.28.0")
    rocm = {v: LIBRARY.get(v).runner.rocm_v1_architectures for v in COUNTS}
    assert rocm["0.28.0"] == ("DeepseekV4ForCausalLM",)
    assert rocm["0.30.0"] == (
        "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM",
    )  # fmt: skip
    assert rocm["0.32.0"] == rocm["0.33.0"] == ()


@pytest.mark.parametrize(
    ("version", "relation", "methods"),
    [
        ("0.28.0", "not_in", {"eagle", "eagle3", "mtp", "dflash", "dspark"}),
        ("0.32.0", "in", {"suffix", "medusa", "mlp_speculator", "custom_class"}),
        ("0.33.0", "in", {"suffix", "custom_class"}),
    ],
)
def test_speculative_methods_that_v2_lacks_are_data(
    version: str, relation: str, methods: set[str]
) -> None:
    features = LIBRARY.get(version).runner.unsupported["v2"]
    (feature,) = (f for f in features if f.label == "speculative method '{method}'")
    assert set(feature.compared["speculative_config.method"][relation]) == methods


def test_abilities_of_well_known_model_classes(shipped: Catalogue) -> None:
    def has(architecture: str, ability: str) -> bool | None:
        return shipped.has_ability(architecture, ability)

    assert has("LlamaForCausalLM", "is_text_generation_model") is True
    assert has("LlamaForCausalLM", "supports_pp") is True
    assert has("LlamaForCausalLM", "supports_lora") is True
    assert has("LlamaForCausalLM", "is_hybrid") is False
    assert has("JambaForCausalLM", "is_hybrid") is True
    assert has("MambaForCausalLM", "is_attention_free") is True
    assert has("BertModel", "is_pooling_model") is True
    assert has("Qwen2_5_VLForConditionalGeneration", "supports_multimodal") is True


def test_nearly_every_model_class_was_inspected(shipped: Catalogue) -> None:
    missing = shipped.model_abilities["not_inspected"]
    assert len(missing) < 0.06 * len(shipped.registries["model_archs"])
    noted = "\n".join(shipped.not_captured)
    assert all(f"model class {name}: " in noted for name in missing)


def test_every_converter_and_every_variable_has_a_known_form(shipped: Catalogue) -> None:
    for flag in shipped.flags:
        converter: Converter | None = flag.converter
        while converter is not None:
            assert converter.name != "unknown", flag.dest
            converter = converter.of
    assert "unknown" not in {fact.parse for fact in shipped.env_vars.values()}


def test_the_device_of_multimodal_processing_depends_on_the_platform() -> None:
    catalogue = LIBRARY.get("0.32.0")
    assert catalogue.by_dest["mm_processor_device"].choices == ("auto", "cpu", "cuda")
    assert catalogue.on_platform("cpu").by_dest["mm_processor_device"].choices == ("auto", "cpu")


def test_experts_are_counted_by_the_same_keys_in_every_release(shipped: Catalogue) -> None:
    assert shipped.expert_count_keys[:4] == (
        "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts",
    )  # fmt: skip


def test_files_are_compact_and_show_a_flag_a_line(shipped: Catalogue) -> None:
    text = text_of(shipped.vllm_version)
    assert len(text) < 460_000
    assert len(re.findall(r'^\{"dest":', text, re.MULTILINE)) == len(shipped.flags)

"""What an example cannot show: the lab has no such file, and vLLM reads it."""

import pytest

from app.catalogue import CatalogueLibrary
from app.proposal.read import read_example
from app.rules.configuration.logs import level_unknown
from app.rules.registry import run
from app.serve_config.resolve import resolve

LEVEL = "VLLM_LOGGING_LEVEL=LOUD"
FILE = "VLLM_LOGGING_CONFIG_PATH=/etc/logging.json"


@pytest.mark.parametrize(
    ("variables", "refused"),
    [(LEVEL, True), (f"{LEVEL} VLLM_LOGGING_CONFIG_PATH=''", True), (f"{LEVEL} {FILE}", False)],
)
@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_a_file_replaces_what_the_level_is_put_into(
    variables: str, refused: bool, version: str
) -> None:
    catalogue = CatalogueLibrary().get(version)
    config = resolve(read_example(f"{variables} vllm serve m"), catalogue).config
    assert config is not None
    findings, abstained = run([level_unknown], config)
    assert (bool(findings), abstained) == (refused, ())

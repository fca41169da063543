from __future__ import annotations

import pytest

from app.errors import MalformedDocument
from app.proposal.image import Image
from app.proposal.proposal import Entrypoint, Hardware, Proposal
from app.proposal.shell import parse_command

IMAGE = "vllm/vllm-openai:v0.32.0"


def environment(proposal: Proposal) -> dict[str, str]:
    return {name: variable.value for name, variable in proposal.environment.items()}


def texts(text: str) -> list[str]:
    return [word.text for word in parse_command(text).words]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-it",
        "-dit --rm --init",
        "-p8000:8000 -p 8000:8000 --publish=1:1",
        "--gpus all --ipc=host --shm-size 8g --ulimit memlock=-1",
        "-v $HOME/.cache:/srv/cache --mount type=bind,src=/a,dst=/b",
        "--name llm --network host --restart unless-stopped",
        "-e A=1 --env B=2 --env=C=3 -eD=4",
        "--runtime nvidia --security-opt label=disable --device nvidia.com/gpu=all",
        "-t=false --",
        "--pull always --platform linux/amd64 -u 1000:1000 -w /srv -l a=b -m 8g",
    ],
)
def test_the_image_is_found_behind_any_options(options: str) -> None:
    proposal = parse_command(f"docker run {options} {IMAGE} org/model --port 1")
    assert [word.text for word in proposal.words] == ["org/model", "--port", "1"]
    assert proposal.image is not None
    assert proposal.image.text == IMAGE
    assert proposal.findings == ()


@pytest.mark.parametrize(
    "program",
    ["docker run", "sudo docker run", "podman run", "nerdctl run", "docker container run"],
)
def test_the_programs_that_run_containers(program: str) -> None:
    assert texts(f"{program} {IMAGE} m") == ["m"]


@pytest.mark.parametrize(
    ("text", "version", "official"),
    [
        (IMAGE, "0.32.0", "cuda"),
        ("vllm/vllm-openai:v0.32.0-cu130", "0.32.0", "cuda"),
        ("docker.example:5000/mirror/vllm/vllm-openai:0.31.0", "0.31.0", "cuda"),
        ("vllm/vllm-openai-rocm:v0.33.0", "0.33.0", "rocm"),
        ("vllm/vllm-openai-cpu:v0.33.0rc1", "0.33.0rc1", "cpu"),
        (f"{IMAGE}@sha256:0123", "0.32.0", "cuda"),
        ("vllm/vllm-openai:latest", None, "cuda"),
        ("vllm/vllm-openai:nightly-0123abc", None, "cuda"),
        ("vllm/vllm-openai", None, "cuda"),
        ("vllm/vllm-openai@sha256:0123", None, "cuda"),
        ("lmcache/vllm-openai:v0.3.9", None, None),
        ("registry.example:5000/team/vllm", None, None),
    ],
)
def test_an_image_tells_its_version_only_if_it_is_vllms(
    text: str, version: str | None, official: str | None
) -> None:
    image = Image(text)
    assert (image.vllm_version, image.official) == (version, official)
    assert image.serves_vllm


def test_other_images_are_none_of_vllms() -> None:
    assert not Image("nginx:1").serves_vllm
    assert Image("$IMAGE", unresolved=("IMAGE",)).serves_vllm


def test_the_container_gets_the_variables_that_it_is_given_and_no_others() -> None:
    proposal = parse_command(
        f"export TOKEN=t OTHER=o\ndocker run -e A=1 -e TOKEN -e UNKNOWN {IMAGE} m"
    )
    assert environment(proposal) == {"A": "1", "TOKEN": "t", "UNKNOWN": "$UNKNOWN"}
    assert proposal.environment["UNKNOWN"].unresolved == ("UNKNOWN",)
    place = proposal.environment["A"].location
    assert (place.line, place.column, place.variable) == (2, 15, "A")


def test_variables_of_a_file_are_read_if_it_is_given() -> None:
    text = f"docker run --env-file a.env -e A=2 --env-file b.env {IMAGE} m"
    files = {"a.env": "# c\nA=1\nB=x y # z\n\nC=1", "b.env": "C=2\nEMPTY=\n"}
    proposal = parse_command(text, files=files)
    assert environment(proposal) == {"A": "2", "B": "x y # z", "C": "2", "EMPTY": ""}
    place = proposal.environment["B"].location
    assert (place.source, place.line, place.column) == ("a.env", 3, 1)
    (finding,) = parse_command(text, files={"a.env": ""}).findings
    assert (finding.rule, finding.undecided) == ("env-file-unseen", True)


@pytest.mark.parametrize(
    ("gpus", "count"),
    [("all", None), ("2", 2), ("'\"device=0,3\"'", 2), ("device=1", 1), ("$N", None)],
)
def test_gpus_count_where_they_are_counted(gpus: str, count: int | None) -> None:
    proposal = parse_command(f"docker run --gpus {gpus} {IMAGE} m")
    assert proposal.hardware == (None if count is None else Hardware(count=count))


def test_the_cpu_image_runs_on_a_cpu() -> None:
    proposal = parse_command("docker run vllm/vllm-openai-cpu:v0.32.0 m")
    assert proposal.hardware == Hardware(gpu="cpu")


@pytest.mark.parametrize(
    ("command", "words", "entrypoint"),
    [
        (f"--entrypoint vllm {IMAGE} serve m", ["m"], Entrypoint.SERVE),
        (
            f"--entrypoint python3 {IMAGE} -m vllm.entrypoints.openai.api_server --model m",
            ["--model", "m"],
            Entrypoint.API_SERVER,
        ),
        (f"--entrypoint /bin/bash {IMAGE} -c 'vllm serve m'", ["m"], Entrypoint.SERVE),
        (f"--entrypoint '' {IMAGE} vllm serve m", ["m"], Entrypoint.SERVE),
        ("mine/image:1 bash -lc 'cd /srv && exec vllm serve m'", ["m"], Entrypoint.SERVE),
        ("mine/image:1 vllm serve m", ["m"], Entrypoint.SERVE),
    ],
)
def test_the_entry_point_decides_what_runs(
    command: str, words: list[str], entrypoint: Entrypoint
) -> None:
    proposal = parse_command(f"docker run {command}")
    assert [word.text for word in proposal.words] == words
    assert proposal.entrypoint is entrypoint


@pytest.mark.parametrize("words", ["vllm serve m", "serve m"])
def test_the_entry_point_given_again_is_arguments_to_it(words: str) -> None:
    proposal = parse_command(f"docker run {IMAGE} {words}")
    assert [word.text for word in proposal.words] == words.split()
    assert [finding.rule for finding in proposal.findings] == ["image-entrypoint-repeated"]


def test_an_image_by_another_name_is_taken_for_vllm_and_says_so() -> None:
    proposal = parse_command("docker run team/vllm-patched:7 m --port 1")
    assert [word.text for word in proposal.words] == ["m", "--port", "1"]
    assert [finding.rule for finding in proposal.findings] == ["image-entrypoint-assumed"]


def test_an_option_list_that_is_not_known_leaves_the_verdict_open() -> None:
    proposal = parse_command(f"docker run $OPTIONS {IMAGE} m")
    assert [word.text for word in proposal.words] == ["m"]
    assert [(f.rule, f.undecided) for f in proposal.findings] == [("shell-unresolved-words", True)]


def test_places_in_a_script_in_quotes_are_those_of_the_text() -> None:
    text = f'docker run --entrypoint sh {IMAGE} -c "cd /srv;\n  vllm serve \\"m\\" --port 1"'
    proposal = parse_command(text)
    assert [(w.text, w.location.line, w.location.column) for w in proposal.words] == [
        ("m", 2, 14),
        ("--port", 2, 20),
        ("1", 2, 27),
    ]


def test_scripts_in_scripts_are_followed_only_so_far() -> None:
    with pytest.raises(MalformedDocument) as caught:
        parse_command('export A=\'sh -c "$A"\'\nsh -c "$A"')
    assert [problem.code for problem in caught.value.problems] == ["shell-depth"]

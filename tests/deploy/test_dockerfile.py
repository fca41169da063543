"""The Dockerfile as hadolint reads it; `make test-image` builds it."""

import subprocess

from tests.deploy.manifests import Programs


def test_hadolint_finds_nothing(programs: Programs) -> None:
    dockerfile = programs.deploy.parent / "Dockerfile"
    command = [str(programs.tools / "hadolint"), str(dockerfile)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

"""The image, built from the Dockerfile and run, without a Docker engine: `make test-image`.

`buildah` with chroot isolation builds it on a Debian that `debootstrap` lays down, since no image
registry can be asked. Where that cannot be (no root, no buildah, no mirror), hadolint reads the
Dockerfile instead, and the run's last lines say that no image was built.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SUITE: Final = "bookworm"
BASE: Final = "vllm-admission-test-base"
IMAGE: Final = "vllm-admission-test"
HOST_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
USER: Final = 65532


def buildah(*words: str, timeout: int = 600) -> str:
    done = subprocess.run(
        ["buildah", *words], check=False, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"buildah {words[0]}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def missing() -> list[str]:
    """What an image cannot be built without here."""
    lacking = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    return [*lacking, *(["root"] if os.geteuid() != 0 else [])]


@dataclass(frozen=True)
class Image:
    """A built image, its configuration, and its root file system, mounted."""

    config: dict[str, Any]
    root: Path

    def run(self, log: BinaryIO, *words: str) -> subprocess.Popen[bytes]:
        """Start its entry point with these words: as its user, its root file system read-only."""
        variables = self.config["Env"]
        script = (
            'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
            ' && mount -t tmpfs tmpfs "$0/tmp" && mount -t proc proc "$0/proc"'
            ' && exec chroot --userspec="$1" "$0" "${@:2}"'
        )
        user = self.config["User"]
        inside = ["env", "-i", "--chdir=/tmp", *variables, *self.config["Entrypoint"], *words]
        return subprocess.Popen(
            ["unshare", "--mount", "--", "bash", "-c", script, str(self.root), user, *inside],
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if missing():
        pytest.fail(f"no image can be built here without {', '.join(missing())}")
    debian = tmp_path_factory.mktemp("debian") / "root"
    packages = "python3,python3-venv,ca-certificates"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(debian)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    scratch = buildah("from", "scratch")
    buildah("add", scratch, str(debian), "/")
    buildah("commit", "--rm", scratch, BASE)
    shutil.rmtree(debian)
    # The package index of this machine: its certificates and pip's configuration.
    shared = [f"--volume={path}:{path}:ro" for path in HOST_FILES if Path(path).exists()]
    pip = [f"--env={k}={v}" for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))]
    buildah(
        *(
            "build",
            "--format=docker",
            "--isolation=chroot",
            "--network=host",
            f"--build-arg=BASE_IMAGE={BASE}",
        ),
        *(*shared, *pip, f"--tag={IMAGE}", f"--file={ROOT / 'Dockerfile'}", str(ROOT)),
    )
    container = buildah("from", "--pull-never", IMAGE)
    config = json.loads(buildah("inspect", "--type=image", IMAGE))["Docker"]["config"]
    try:
        yield Image(config, Path(buildah("mount", container)))
    finally:
        buildah("umount", container)
        buildah("rm", container)
        buildah("rmi", IMAGE, BASE)


@dataclass(frozen=True)
class Service:
    process: subprocess.Popen[bytes]
    port: int
    log: Path


@pytest.fixture
def service(image: Image, tmp_path: Path) -> Iterator[Service]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("wb") as written:
        process = image.run(written, "serve", "--host", "127.0.0.1", "--port", str(port))
    try:
        for _ in range(300):
            try:
                get(port, "/livez")
                break
            except OSError:
                time.sleep(0.1)
        yield Service(process, port, log)
    finally:
        process.kill()
        process.wait()


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        text: str = answer.read().decode()
        return text


def test_it_is_built_for_a_user_without_rights(image: Image) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.config["Entrypoint"] == ["vllm-admission"]
    assert image.config["Cmd"][0] == "serve"
    assert image.config["StopSignal"] == "SIGTERM"
    assert "PYTHONDONTWRITEBYTECODE=1" in image.config["Env"]


def test_nothing_of_it_belongs_to_that_user(image: Image) -> None:
    owned = f"-user {USER} -o -perm -o+w".split()
    found = subprocess.run(
        ["find", str(image.root / "opt"), "(", *owned, ")", "-not", "-type", "l"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == ""


def test_what_the_build_needed_is_not_in_it(image: Image) -> None:
    """Neither tests, caches nor the machine's package index."""
    site = next((image.root / "opt/vllm-admission/lib").glob("python3*/site-packages"))
    assert not (site / "tests").exists()
    assert not list(image.root.glob("root/.cache/*"))
    assert not (image.root / "src").exists()


def test_it_serves_with_a_read_only_root(service: Service) -> None:
    assert service.process.poll() is None, service.log.read_text()
    assert get(service.port, "/livez") == "ok\n"
    assert get(service.port, "/readyz") == "ok\n"
    body = json.dumps({"args": ["m", "--return-sampling-mask"], "vllm_version": "0.32.0"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{service.port}/validate", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["verdict"] == "rejected"


def test_it_runs_as_that_user_and_ends_on_sigterm(service: Service) -> None:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    assert f"Uid:\t{USER}" in status
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(timeout=30) in {0, -signal.SIGTERM}


def test_its_health_check_tells_sick_from_well(image: Image, service: Service) -> None:
    """The check of the Dockerfile, at the port this test has, as Docker would run it."""
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    for port, code in ((service.port, 0), (9, 1)):
        words = [word.replace("8080", str(port)) for word in command]
        inside = ["/usr/bin/env", "-i", *image.config["Env"], *words]
        done = subprocess.run(
            ["chroot", f"--userspec={USER}:{USER}", str(image.root), *inside],
            check=False,
            capture_output=True,
        )
        assert done.returncode == code, done.stderr.decode()


if __name__ == "__main__":
    if missing():
        hadolint = ROOT / ".venv" / "deploy-tools" / "hadolint"
        print(f"NO IMAGE WAS BUILT: there is no {', '.join(missing())}; hadolint reads it instead")
        sys.exit(subprocess.run([str(hadolint), str(ROOT / "Dockerfile")], check=False).returncode)
    sys.exit(pytest.main([__file__, "--timeout=900", "-q"]))

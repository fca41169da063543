"""The image, built from the Dockerfile and run, without a Docker engine: `make test-image`.

`buildah` with chroot isolation builds it on a Debian that `debootstrap` lays down, since no image
registry can be asked. Where that cannot be (no root, no buildah, no namespaces), hadolint reads the
Dockerfile instead, and the run's last lines say that no image was built.
"""

from __future__ import annotations

import ctypes
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pytest

from app.certificates.issue import issue
from app.certificates.serving import now

ROOT: Final = Path(__file__).parents[2]
SUITE: Final = "bookworm"
BASE: Final = "vllm-admission-test-base"
IMAGE: Final = "vllm-admission-test"
HOST_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
USER: Final = 65532
T = TypeVar("T")


def buildah(*words: str, timeout: int = 600) -> str:
    done = subprocess.run(
        ["buildah", *words], check=False, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"buildah {words[0]}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def missing() -> list[str]:
    """What an image cannot be built without here."""
    lacking = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if os.geteuid() != 0:
        return [*lacking, "root"]
    spaces = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    allowed = subprocess.run(spaces, check=False, capture_output=True).returncode == 0
    return lacking if allowed else [*lacking, "leave to make namespaces"]


def _in_network(process: int, call: Callable[[], T]) -> T:
    """Call in the network of a process, its loopback up; ends up with this thread in there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{process}/ns/net").open() as network:
        if libc.setns(network.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    with socket.socket() as any_socket:
        up = struct.pack("16sh", b"lo", 1)
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS, IFF_UP
    return call()


@dataclass(frozen=True)
class Service:
    """A container of the image: `first` is its first process, as the machine numbers it."""

    process: subprocess.Popen[bytes]
    first: int
    log: Path

    def ask(
        self, url: str, body: object = None, connect: str = "127.0.0.1", trusted: str = ""
    ) -> str:
        """Ask from inside its network; `connect` is where the URL's host is to be found."""
        parts = urlsplit(url)

        def call() -> str:
            client = http.client.HTTPConnection(parts.netloc, timeout=10)
            if parts.scheme == "https":
                tls = ssl.create_default_context(cadata=trusted)
                raw = socket.create_connection((connect, parts.port or 443), timeout=10)
                client.sock = tls.wrap_socket(raw, server_hostname=parts.hostname)
            data = None if body is None else json.dumps(body)
            header = {"Content-Type": "application/json"}
            with closing(client):
                client.request("GET" if body is None else "POST", url, data, header)
                answer = client.getresponse()
                text = answer.read().decode()
            assert answer.status == 200, text
            return text

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_in_network, self.first, call).result()

    def inside(self, *words: str, root: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program in its network; `root` is as `docker exec` does, in its files too."""
        spaces = ["--net"]
        if root:
            user = f"--setuid={USER}", f"--setgid={USER}"
            spaces = ["--net", "--mount", "--pid", "--root", "--wd", *user]
        command = ["nsenter", f"--target={self.first}", *spaces, *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@dataclass(frozen=True)
class Image:
    """A built image, its configuration, and its root file system, mounted."""

    config: dict[str, Any]
    root: Path

    @contextmanager
    def run(
        self, log: Path, *words: str, mount: Path | None = None, **variables: str
    ) -> Iterator[Service]:
        """Start its entry point with these words, as a container engine would.

        As its user, as the first process, with no privileges to gain, in a network of its own, and
        with a root file system that is read-only but for /tmp. `mount` is seen at /mnt.
        """
        script = (
            'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
            ' && mount -t tmpfs tmpfs "$0/tmp" && mount -t proc proc "$0/proc"'
            ' && if [ -n "$2" ]; then mount --bind "$2" "$0/mnt"; fi'
            " && ip link set lo up && exec setpriv --no-new-privs"
            ' chroot --userspec="$1" "$0" "${@:3}"'
        )
        given = [f"{name}={value}" for name, value in variables.items()]
        with log.open("wb") as written:
            process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash"),
                    *("-c", script, str(self.root), self.config["User"], str(mount or "")),
                    *(*self.environment(), *given, *self.config["Entrypoint"], *words),
                ],
                stdout=written,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Service(process, self._first(process, log), log)
        finally:
            # --kill-child does not reach it: changing the user takes back what kills it.
            for child in self._children(process):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            process.kill()
            process.wait()

    @staticmethod
    def _children(process: subprocess.Popen[bytes]) -> list[int]:
        """Give the first process of the container, if it runs; all others end with it."""
        if process.poll() is not None:
            return []
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return [int(child) for child in path.read_text().split()]

    def environment(self) -> list[str]:
        """Give the words that start a program with the image's variables, where it works."""
        return ["env", "-i", f"--chdir={self.config['WorkingDir']}", *self.config["Env"]]

    @classmethod
    def _first(cls, process: subprocess.Popen[bytes], log: Path) -> int:
        """Wait until the service listens, and give its process."""
        for _ in range(600):
            if b'"listening"' in log.read_bytes() or process.poll() is not None:
                break
            time.sleep(0.1)
        assert process.poll() is None, log.read_text()
        (child,) = cls._children(process)
        return child


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


@pytest.fixture
def service(image: Image, tmp_path: Path) -> Iterator[Service]:
    """The image's own command."""
    with image.run(tmp_path / "log", *image.config["Cmd"]) as running:
        yield running


PLAIN: Final = "http://127.0.0.1:8080"
ARGS: Final = ["m", "--return-sampling-mask"]


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
    """Neither tests, caches, an installer, nor the machine's package index."""
    site = next((image.root / "opt/vllm-admission/lib").glob("python3*/site-packages"))
    assert not (site / "tests").exists()
    assert not (site / "pip").exists()
    assert not list(image.root.glob("root/.cache/*"))
    assert not (image.root / "src").exists()
    assert not (image.root / "etc/pip.conf").exists()


def test_it_serves_with_a_read_only_root(service: Service) -> None:
    assert service.ask(f"{PLAIN}/livez") == "ok\n"
    assert service.ask(f"{PLAIN}/readyz") == "ok\n"
    body = {"args": ARGS, "vllm_version": "0.32.0"}
    assert json.loads(service.ask(f"{PLAIN}/validate", body))["verdict"] == "rejected"
    refused = service.inside("touch", "/opt/vllm-admission/file", root=True)
    assert "Read-only file system" in refused.stderr


def test_it_runs_without_rights_and_ends_on_sigterm(service: Service) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{service.first}/status").read_text().splitlines()
    )
    assert status["Uid"].split() == status["Gid"].split() == [str(USER)] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["NSpid"].split()[-1] == "1"
    os.kill(service.first, signal.SIGTERM)
    assert service.process.wait(timeout=30) == 0, service.log.read_text()


def test_its_health_check_tells_sick_from_well(image: Image, service: Service) -> None:
    """The check of the Dockerfile, word for word, as Docker would run it."""
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    check = (*image.environment(), *command)
    well = service.inside(*check, root=True)
    assert well.returncode == 0, well.stderr
    chroot = ["chroot", f"--userspec={USER}:{USER}", str(image.root)]
    sick = subprocess.run(["unshare", "--net", *chroot, *check], check=False, capture_output=True)
    assert sick.returncode == 1


def test_it_serves_reviews_under_a_certificate_that_is_mounted(
    image: Image, tmp_path: Path
) -> None:
    """As the chart starts it."""
    issued = issue(("gate.gates.svc",), now())
    certificates = tmp_path / "tls"
    certificates.mkdir()
    for name in ("authorities", "certificate", "key"):
        (certificates / name).write_bytes(getattr(issued, name))
        (certificates / name).chmod(0o444)
    words = ("serve", "--host=0.0.0.0", "--port=8080", "--tls-port=8443")
    files = {
        "VLLM_ADMISSION_TLS_CERT_FILE": "/mnt/certificate",
        "VLLM_ADMISSION_TLS_KEY_FILE": "/mnt/key",
    }
    with image.run(tmp_path / "log", *words, mount=certificates, **files) as service:
        url = "https://gate.gates.svc:8443/admission/validate/enforce"
        pod = {"containers": [{"name": "v", "image": "vllm/vllm-openai:v0.32.0", "args": ARGS}]}
        subject = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}
        request = {"uid": "7", "operation": "CREATE", "object": subject}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        trusted = issued.authorities.decode()
        answer = service.ask(url, {**review, "request": request}, trusted=trusted)
        response = json.loads(answer)["response"]
        assert (response["uid"], response["allowed"]) == ("7", False)
        assert "[+]certificate ok" in service.ask(f"{PLAIN}/readyz?verbose")


def test_its_other_commands_start(image: Image, tmp_path: Path) -> None:
    """The job that makes certificates fails for want of a pod, and for nothing else."""
    log = tmp_path / "log"
    words = ["certificate", "--namespace=a", "--service=b", "--secret=c", "--configuration=d"]
    with (
        pytest.raises(AssertionError, match="not a pod with a service account"),
        image.run(log, *words),
    ):
        pass


if __name__ == "__main__":
    if missing():
        hadolint = ROOT / ".venv" / "deploy-tools" / "hadolint"
        print(f"NO IMAGE WAS BUILT: there is no {', '.join(missing())}; hadolint reads it instead")
        sys.exit(subprocess.run([str(hadolint), str(ROOT / "Dockerfile")], check=False).returncode)
    sys.exit(pytest.main([__file__, "--timeout=900", "-q"]))

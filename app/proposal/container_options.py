"""The options of `docker run`, `podman run` and `nerdctl run`: which of them take a value.

Needed to find the image, the first word that is neither an option nor an option's value. Source:
`docker run --help` (Docker 29), podman-run(1) of Podman 5, `nerdctl run --help` (nerdctl 2).
"""

from __future__ import annotations

from typing import Final

SHORT_SWITCHES: Final = frozenset("diqtP")
SHORT_WITH_VALUE: Final = frozenset("acehlmpuvw")

SWITCHES: Final = frozenset(
    {"--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init"}
    | {"--insecure-registry", "--interactive", "--no-healthcheck", "--no-hostname", "--no-hosts"}
    | {"--oom-kill-disable", "--passwd", "--privileged", "--publish-all", "--quiet", "--read-only"}
    | {"--read-only-tmpfs", "--replace", "--rm", "--rmi", "--rootfs", "--sig-proxy"}
    | {"--tls-verify", "--tty", "--unsetenv-all", "--use-api-socket"}
)

WITH_VALUE: Final = frozenset(
    {"--add-host", "--annotation", "--arch", "--attach", "--authfile", "--blkio-weight"}
    | {"--blkio-weight-device", "--cap-add", "--cap-drop", "--cert-dir", "--cgroup-conf"}
    | {"--cgroup-manager", "--cgroup-parent", "--cgroupns", "--cgroups", "--chrootdirs"}
    | {"--cidfile", "--conmon-pidfile", "--cosign-certificate-identity", "--cosign-key"}
    | {"--cpu-count", "--cpu-percent", "--cpu-period", "--cpu-quota", "--cpu-rt-period"}
    | {"--cpu-rt-runtime", "--cpu-shares", "--cpus", "--cpuset-cpus", "--cpuset-mems", "--creds"}
    | {"--decryption-key", "--detach-keys", "--device", "--device-cgroup-rule"}
    | {"--device-read-bps", "--device-read-iops", "--device-write-bps", "--device-write-iops"}
    | {"--dns", "--dns-opt", "--dns-option", "--dns-search", "--domainname", "--entrypoint"}
    | {"--env", "--env-file", "--env-merge", "--expose", "--gidmap", "--gpus", "--group-add"}
    | {"--group-entry", "--health-cmd", "--health-interval", "--health-log-destination"}
    | {"--health-max-log-count", "--health-max-log-size", "--health-on-failure"}
    | {"--health-retries", "--health-start-interval", "--health-start-period"}
    | {"--health-startup-cmd", "--health-startup-interval", "--health-startup-retries"}
    | {"--health-startup-success", "--health-startup-timeout", "--health-timeout", "--hostname"}
    | {"--hosts-file", "--hostuser", "--image-volume", "--init-ctr", "--init-path"}
    | {"--io-maxbandwidth", "--io-maxiops", "--ip", "--ip6", "--ipc", "--ipfs-address"}
    | {"--isolation", "--kernel-memory", "--label", "--label-file", "--link", "--link-local-ip"}
    | {"--log-driver", "--log-opt", "--mac-address", "--memory", "--memory-reservation"}
    | {"--memory-swap", "--memory-swappiness", "--mount", "--name", "--net", "--net-alias"}
    | {"--network", "--network-alias", "--oom-score-adj", "--os", "--passwd-entry"}
    | {"--personality", "--pid", "--pidfile", "--pids-limit", "--platform", "--pod"}
    | {"--pod-id-file", "--preserve-fd", "--preserve-fds", "--publish", "--pull"}
    | {"--rdt-class", "--requires", "--restart", "--retry", "--retry-delay", "--runtime"}
    | {"--sdnotify", "--seccomp-policy", "--secret", "--security-opt", "--shm-size"}
    | {"--shm-size-systemd", "--stop-signal", "--stop-timeout", "--storage-opt", "--subgidname"}
    | {"--subuidname", "--sysctl", "--systemd", "--timeout", "--tmpfs", "--tz", "--uidmap"}
    | {"--ulimit", "--umask", "--unsetenv", "--user", "--userns", "--uts", "--variant"}
    | {"--verify", "--volume", "--volume-driver", "--volumes-from", "--workdir"}
)

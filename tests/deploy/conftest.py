import os
from pathlib import Path

import pytest

from tests.deploy.manifests import Programs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Helm and kubectl, where `make` puts them (deploy/tools.py)."""
    directory = Path(os.environ.get("DEPLOY_TOOLS", ROOT / ".venv" / "deploy-tools"))
    for name in ("helm", "kubectl"):
        assert (directory / name).exists(), f"run: python deploy/tools.py {directory}"
    return Programs(directory, ROOT / "deploy")

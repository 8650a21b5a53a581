"""Training of a transformer on a CPU: like spacy-transformers, and in bfloat16; threads."""

import random
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.util import registry
from thinc.api import Adam, Optimizer
from torch import Tensor

from pipelines import OWN_TRANSFORMER, make_examples
from spacy_crf_ner.ml import dtype
from spacy_crf_ner.training.optimizer import GroupedAdam

OURS, THEIRS = "spacy-crf-ner.TransformerModel.v1", "spacy-transformers.TransformerModel.v3"


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def pipeline(folder: str, architecture: str, **settings: Any) -> Language:
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    spans = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 8, "stride": 6}
    model = {"@architectures": architecture, "name": folder, "get_spans": spans, **settings}
    nlp.add_pipe("transformer", config={"model": model})
    listener = {"@architectures": "spacy-transformers.TransformerListener.v1", "grad_factor": 1.0}
    listener["pooling"] = {"@layers": "reduce_mean.v1"}  # type: ignore[assignment]
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": listener}})
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def shim_of(nlp: Language) -> Any:
    return nlp.get_pipe("transformer").model.layers[0].shims[0]


def weights(nlp: Language) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in shim_of(nlp)._model.named_parameters()}


def gradients(nlp: Language) -> dict[str, Tensor]:
    """The gradients of one update that does not move the weights."""
    torch.manual_seed(0)
    nlp.update(make_examples(nlp), sgd=False)  # type: ignore[arg-type]
    named = shim_of(nlp)._model.named_parameters()
    return {name: p.grad.to_dense() for name, p in named if p.grad is not None}


def fit(nlp: Language, batches: list[int], optimizer: Optimizer) -> Language:
    """Train on so many of the examples each, 0 for an update that has no gradient."""
    torch.manual_seed(0)
    for n in batches:
        for eg in make_examples(nlp)[:n]:  # accumulated
            nlp.update([eg], sgd=False)  # type: ignore[arg-type]
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)
    return nlp


def test_trained_weights_match_spacy_transformers(tiny_transformer: str) -> None:
    """Also with an update without gradients, in which Adam still applies its moments."""
    settings = {"L2": 0.1, "use_averages": False}
    ours, theirs = (
        weights(
            fit(
                pipeline(tiny_transformer, name, transformer_config=NO_DROPOUT),
                [2, 7, 0, 1],
                Adam(0.01, **settings),  # type: ignore[arg-type]
            )
        )
        for name in (OURS, THEIRS)
    )
    begun = weights(pipeline(tiny_transformer, OURS))
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, atol=2e-5, err_msg=name)
        assert (name.startswith("pooler.")) == np.array_equal(expected, begun[name]), name


def test_cpu_training_uses_sparse_gradients_and_fast_dropout(
    tiny_transformer: str,
) -> None:
    """A dense one for each batch of windows would take longer; optimizers need dense ones."""
    nlp = pipeline(tiny_transformer, OURS)
    module = shim_of(nlp)._model
    made: list[Any] = []
    words = module.get_input_embeddings()
    words.weight.register_hook(lambda gradient: made.append(gradient.layout))
    for _ in range(2):  # the second one is added to the first
        nlp.update(make_examples(nlp), sgd=False)  # type: ignore[arg-type]
        learned = [weights.grad for weights in module.parameters() if weights.grad is not None]
        assert {gradient.layout for gradient in learned} == {torch.strided}
    assert made == [torch.sparse_coo] * 2
    assert not words.sparse  # others may train the module with optimizers for dense gradients
    assert not any(type(layer) is torch.nn.Dropout for layer in module.modules())  # slower


@pytest.mark.parametrize("make", [Adam, GroupedAdam])
def test_use_params_replaces_weights_by_averages(make: Any, tiny_transformer: str) -> None:
    """Of the transformer and of the head, as numpy computes them by thinc's formula.

    thinc's begin at zero, ours with the weights.
    """
    nlp = pipeline(tiny_transformer, OURS)
    shims = [shim for _, pipe in nlp.pipeline for node in pipe.model.walk() for shim in node.shims]
    named = [weights for shim in shims for _, weights in shim._model.named_parameters()]
    optimizer = make(0.01, use_averages=True)
    begin = 1 if make is GroupedAdam else 0
    expected = [begin * weights.detach().numpy() for weights in named]
    for step in range(1, 5):
        fit(nlp, [2], optimizer)
        decay = (1 + step) / (10 + step)
        expected = [
            decay * average + (1 - decay) * weights.detach().numpy()
            for average, weights in zip(expected, named)
        ]
    last = [weights.detach().numpy().copy() for weights in named]
    with nlp.use_params(optimizer.averages):
        inside = [weights.detach().numpy().copy() for weights in named]
        saved = nlp.to_bytes()
    assert len(named) > 20
    learned = [not np.array_equal(*pair) for pair in zip(inside, last)]
    assert 0 < learned.count(False) <= 4  # the pooler of the transformer has no gradient
    for average, own, is_learned in zip(expected, inside, learned):
        if is_learned:
            np.testing.assert_allclose(own, average, atol=1e-6)
    for own, weights in zip(last, named):
        np.testing.assert_array_equal(own, weights.detach().numpy())
    loaded = shim_of(pipeline(tiny_transformer, OURS).from_bytes(saved))
    for (_, weights), own in zip(loaded._model.named_parameters(), inside):
        np.testing.assert_array_equal(weights.detach().numpy(), own)


def test_predict_in_threads_applies_no_dropout(tiny_transformer: str) -> None:
    nlp = pipeline(tiny_transformer, OURS)
    nlp.update(make_examples(nlp), sgd=False, drop=0.5)  # type: ignore[arg-type]

    def scores(text: str) -> np.ndarray:
        emissions: np.ndarray = nlp.get_pipe("crf_ner").trellis(nlp(text)).emissions  # type: ignore
        return emissions

    texts = [f"Tim Cook visited {number} cities." for number in range(40)]
    expected = [scores(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(scores, texts)]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=1e-5)


def test_predict_before_backward_keeps_training_mode(tiny_transformer: str) -> None:
    """Gradient checkpoints run the layers again in the backward pass, with the same dropout."""
    nlp = pipeline(tiny_transformer, OURS)
    model: Any = nlp.get_pipe("transformer").model
    module = shim_of(nlp)._model
    seen = []
    module.embeddings.word_embeddings.weight.register_hook(lambda _: seen.append(module.training))
    nlp.update(make_examples(nlp), sgd=False, annotates=["transformer"])  # type: ignore[arg-type]
    assert seen == [True] * len(seen) != []
    model.predict([eg.reference for eg in make_examples(nlp)])
    assert not module.training


@pytest.mark.parametrize("spans", ["doc_spans", "strided_spans"])
def test_transformer_initialized_on_empty_docs_predicts(spans: str, tiny_transformer: str) -> None:
    more = {"window": 8, "stride": 6} if spans == "strided_spans" else {}
    getter = {"@span_getters": f"spacy-transformers.{spans}.v1", **more}
    nlp = spacy.blank("en")
    model = {"@architectures": OURS, "name": tiny_transformer, "get_spans": getter}
    nlp.add_pipe("transformer", config={"model": model})
    nlp.initialize(lambda: make_examples(nlp, [("", [])] * 12))
    docs = list(nlp.pipe(["Tim Cook", "", "Hanoi"]))
    assert [len(doc._.trf_data.wordpieces.strings) for doc in docs] == [1, 0, 1]
    beside, alone = (
        doc._.trf_data.model_output.last_hidden_state for doc in (docs[2], nlp("Hanoi"))
    )
    np.testing.assert_allclose(beside[:, : alone.shape[1]], alone, atol=1e-5)


def test_training_keeps_python_random_state(tiny_transformer: str) -> None:
    """The order of docs in the next epoch depends on it."""
    nlp = pipeline(tiny_transformer, OURS)
    before = random.getstate()
    nlp.update(make_examples(nlp), sgd=False)  # type: ignore[arg-type]
    assert random.getstate() == before


def test_copy_has_separate_optimizer_moments(tiny_transformer: str) -> None:
    """The optimizer keeps its moments apart from those of what was copied."""
    moved = []
    for is_alone in (True, False):
        nlp = pipeline(tiny_transformer, OURS)
        shared: Any = nlp.get_pipe("transformer").model
        own = shared.copy()
        ids = [model.layers[0].shims[0].id for model in (shared, own)]
        assert ids[0] != ids[1]
        optimizer = Adam(0.01)
        for step in range(3):
            for model in [own] if is_alone else [shared, own]:
                shim = model.layers[0].shims[0]
                for i, weights in enumerate(shim._model.parameters()):
                    torch.manual_seed(10 * step + i)
                    sign = -1 if model is shared else 1
                    weights.grad = sign * torch.rand_like(weights)
                shim.finish_update(optimizer)
        moved.append([w.detach().clone() for w in own.layers[0].shims[0]._model.parameters()])
    for alone, beside in zip(*moved):
        torch.testing.assert_close(alone, beside)


def test_head_copy_has_new_shim_ids(tiny_transformer: str) -> None:
    head: Any = pipeline(tiny_transformer, OURS).get_pipe("crf_ner").model  # type: ignore[attr-defined]
    ids = [[shim.id for node in m.walk() for shim in node.shims] for m in (head, head.copy())]
    assert ids[0] and not {*ids[0]} & {*ids[1]}


def test_dropout_applies_config_rate_in_training_only(tiny_transformer: str) -> None:
    rates = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.0}
    layer: Any = (
        pipeline(tiny_transformer, OURS, transformer_config=rates).get_pipe("transformer").model
    )  # type: ignore[attr-defined]
    seen = []

    def hook(module: Any, inputs: Any, output: Tensor) -> None:
        seen.append((module.training, (output[inputs[0] != 0] == 0).float().mean().item()))

    layer.shim._model.embeddings.dropout.register_forward_hook(hook)
    docs = [spacy.blank("en")("Tim Cook visited Hanoi and wrote home. " * 20)]
    torch.manual_seed(0)
    layer.begin_update(docs)
    layer.predict(docs)
    assert {training for training, _ in seen} == {True, False}
    for training, dropped in seen:
        assert 0.15 < dropped < 0.35 if training else dropped == 0.0


def test_initialize_of_copy_keeps_trained_weights(tiny_transformer: str) -> None:
    """As of a component whose listener is replaced, and which is then initialized."""
    shared: Any = pipeline(tiny_transformer, OURS).get_pipe("transformer").model
    with torch.no_grad():
        for parameter in shared.shim._model.parameters():
            parameter += 1.0
    own = shared.copy()
    own.initialize()
    for learned, expected in zip(own.shim._model.parameters(), shared.shim._model.parameters()):
        torch.testing.assert_close(learned, expected)


def test_deepcopied_pipeline_and_optimizer_train_like_original(tiny_transformer: str) -> None:
    """With a copy of the moments that the optimizer has."""
    nlp = pipeline(tiny_transformer, OURS)
    optimizer = Adam(0.01)
    fit(nlp, [2, 7], optimizer)
    copied, its_optimizer = deepcopy((nlp, optimizer))
    before = weights(nlp)
    after = [
        weights(fit(each, [3], sgd)) for each, sgd in ((nlp, optimizer), (copied, its_optimizer))
    ]
    assert any(not np.array_equal(before[name], after[0][name]) for name in before)
    for name, values in after[0].items():
        np.testing.assert_allclose(after[1][name], values, atol=1e-6, err_msg=name)


def test_transformer_settings_match_spacy_transformers(tiny_transformer: str) -> None:
    settings = {
        "tokenizer_config": {"model_max_length": 5},
        "transformer_config": {"hidden_dropout_prob": 0.3},
        "grad_scaler_config": {"init_scale": 64.0},
    }
    for architecture in (OURS, THEIRS):
        nlp = pipeline(tiny_transformer, architecture, **settings)
        doc = nlp.get_pipe("transformer")(nlp.make_doc("Nothing to see here, move along."))
        assert set(doc._.trf_data.wordpieces.lengths) == {5}
        assert shim_of(nlp)._model.config.hidden_dropout_prob == 0.3
        assert shim_of(nlp)._grad_scaler._scale == 64.0


def test_grad_factor_of_own_transformer_scales_gradients(tiny_transformer: str) -> None:
    found = []
    for factor in (1.0, 0.25):
        spacy.util.fix_random_seed(0)
        nlp = spacy.blank("en")
        own = {**OWN_TRANSFORMER, "name": tiny_transformer, "grad_factor": factor}
        nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": own}})
        nlp.initialize(lambda nlp=nlp: make_examples(nlp))  # type: ignore[misc]
        torch.manual_seed(0)
        nlp.update(make_examples(nlp), sgd=False)  # type: ignore[arg-type]
        tok2vec: Any = nlp.get_pipe("crf_ner").model.get_ref("tok2vec")  # type: ignore[attr-defined]
        (shim,) = (shim for layer in tok2vec.walk() for shim in layer.shims)
        found.append({n: w.grad for n, w in shim._model.named_parameters() if w.grad is not None})
    whole, scaled = found
    assert any(gradient.to_dense().any() for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(scaled[name].to_dense(), 0.25 * gradient.to_dense())


@pytest.fixture(scope="module")
def gradients_in(tiny_transformer: str) -> dict[bool | str, dict[str, Tensor]]:
    """The gradients of each setting of mixed_precision that a CPU has."""
    return {
        setting: gradients(pipeline(tiny_transformer, OURS, mixed_precision=setting))
        for setting in (False, "bf16")
    }


def test_mixed_precision_true_on_cpu_trains_in_float32(
    tiny_transformer: str, gradients_in: Any
) -> None:
    """As for the head: the setting is for GPUs."""
    plain = gradients_in[False]
    same = gradients(pipeline(tiny_transformer, OURS, mixed_precision=True))
    for name, gradient in plain.items():
        torch.testing.assert_close(same[name], gradient)


def test_bfloat16_gradients_are_close_to_float32(tiny_transformer: str, gradients_in: Any) -> None:
    plain = gradients_in[False]
    nlp = pipeline(tiny_transformer, OURS, mixed_precision="bf16")
    mixed = gradients(nlp)
    assert mixed.keys() == plain.keys()
    assert {g.dtype for g in mixed.values()} == {torch.float32}
    assert {str(w.dtype) for w in weights(nlp).values()} == {"float32"}
    words = "embeddings.word_embeddings.weight"
    assert not torch.equal(mixed[words], plain[words])
    flat = [torch.cat([g.reshape(-1) for g in each.values()]) for each in (mixed, plain)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.99


@pytest.mark.parametrize(
    "has_bf16, seconds, expected", [(True, 1.0, "bf16"), (True, 2.0, False), (False, 1.0, False)]
)
def test_auto_trains_in_bfloat16_only_if_faster(
    tiny_transformer: str,
    has_bf16: bool,
    seconds: float,
    expected: bool | str,
    gradients_in: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dtype, "has_bf16", lambda: has_bf16)
    monkeypatch.setattr(dtype, "measure_linear", lambda *_: {"fp32": 2.0, "bf16": seconds})
    found = gradients(pipeline(tiny_transformer, OURS, mixed_precision="auto"))
    same, other = gradients_in[expected], gradients_in[False if expected else "bf16"]
    assert all(torch.equal(found[name], same[name]) for name in same)
    assert not all(torch.equal(found[name], other[name]) for name in other)


def test_bfloat16_pipeline_predicts_in_float32(tiny_transformer: str) -> None:
    """The setting is in the config."""
    nlp = pipeline(tiny_transformer, OURS, mixed_precision="bf16")
    plain = pipeline(tiny_transformer, OURS)
    assert nlp.config["components"]["transformer"]["model"]["mixed_precision"] == "bf16"
    doc, same = nlp("Tim Cook visited Hanoi."), plain("Tim Cook visited Hanoi.")
    hidden, expected = (d._.trf_data.model_output.last_hidden_state for d in (doc, same))
    np.testing.assert_array_equal(hidden, expected)


def test_unknown_mixed_precision_raises(tiny_transformer: str) -> None:
    with pytest.raises(ValueError, match="mixed_precision"):
        pipeline(tiny_transformer, OURS, mixed_precision="int4")
    assert registry.architectures.get(OURS)

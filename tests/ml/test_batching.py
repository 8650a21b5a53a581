"""Batches of windows of similar length give the results of spacy-transformers' own batches."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from spacy.language import Language
from spacy_transformers.data_classes import TransformerData
from thinc.api import ArgsKwargs

from phobert import make_over_phobert
from spacy_crf_ner.ml.transformer import batching
from spacy_crf_ner.ml.transformer import model as transformer
from spacy_crf_ner.ml.transformer import windows as windows_of

TEXTS = [
    "Tim Cook visited Hanoi.",
    "",
    " \n ",
    "It  is \t here. \n\n So\u00a0what?  ",
    "x",
    "né 😀 isn't it (so)?",
    "A longer text, of several windows, so long that none of the others is. " * 7,
    "Washington",
    "w" * 300,
    "And one of two windows, that of ten words and the rest.",
]


def pipeline(transformer: str, window: int = 12, stride: int = 10, **settings: Any) -> Language:
    spans = {"@span_getters": "spacy-transformers.strided_spans.v1"}
    nlp = spacy.blank("en")
    model = {
        "@architectures": "spacy-crf-ner.TransformerModel.v1",
        "name": transformer,
        "get_spans": {**spans, "window": window, "stride": stride},
        **settings,
    }
    nlp.add_pipe("transformer", config={"model": model})
    nlp.initialize()
    return nlp


def vectors(data: TransformerData) -> np.ndarray:
    """The state of each wordpiece of each token, one after the other."""
    states = data.model_output.last_hidden_state
    return states.reshape(-1, states.shape[-1])[data.align.dataXd]


def strings(data: TransformerData, pad: str) -> list[list[str]]:
    return [[string for string in row if string != pad] for row in data.wordpieces.strings]


def check_same(nlp: Language, texts: list[str]) -> None:
    """Hidden states and alignment are those of spacy-transformers, doc by doc."""
    layer = nlp.get_pipe("transformer").model
    layer.shim.dtype = "fp32"
    docs = [nlp.make_doc(text) for text in texts]
    encoded = layer.predict(docs)
    layer.shim.dtype = None
    expected = layer.predict(docs)
    assert len(encoded.doc_data) == len(expected.doc_data) == len(docs)
    pad = layer.tokenizer.pad_token
    for doc, ours, theirs in zip(docs, encoded.doc_data, expected.doc_data):
        assert_array_equal(ours.align.lengths, theirs.align.lengths)
        assert strings(ours, pad) == strings(theirs, pad)
        assert ours.wordpieces.lengths == [sum(row) for row in ours.wordpieces.attention_mask]
        if len(doc):
            assert len(ours.align.lengths) == len(doc)
            assert_allclose(vectors(ours), vectors(theirs), atol=1e-5)
            pieces = [string for row in ours.wordpieces.strings for string in row]
            ids = layer.tokenizer.convert_tokens_to_ids(pieces)
            assert ours.wordpieces.input_ids.ravel().tolist() == ids
    # The whole batch, too, pairs each token with the same states.
    whole = encoded.model_output.last_hidden_state.reshape(-1, encoded.doc_data[0].width)
    each = [vectors(data) for data in encoded.doc_data if data.align.dataXd.size]
    assert_allclose(whole[torch.from_numpy(encoded.align.dataXd)].numpy(), np.concatenate(each))
    assert_array_equal(
        encoded.align.lengths, np.concatenate([d.align.lengths for d in encoded.doc_data])
    )


def test_encoded_windows_match_spacy_transformers(tiny_transformer: str) -> None:
    check_same(pipeline(tiny_transformer), TEXTS)


@pytest.mark.parametrize("window, stride", [(3, 3), (5, 2), (128, 96)])
def test_overlapping_and_long_windows_match_spacy_transformers(
    tiny_transformer: str, window: int, stride: int
) -> None:
    check_same(pipeline(tiny_transformer, window, stride), TEXTS)


def test_many_batches_match_one(tiny_transformer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "CPU", windows_of.BatchLimits(40, 2))
    check_same(pipeline(tiny_transformer), TEXTS[::-1])


def test_custom_windows_align_only_covered_tokens(tiny_transformer: str) -> None:
    nlp = pipeline(tiny_transformer)
    nlp.get_pipe("transformer").model.attrs["get_spans"] = lambda docs: [
        [doc[i : i + 4] for i in range(0, len(doc) - 2, 4)] for doc in docs
    ]  # which leave out the last tokens of a doc
    layer = nlp.get_pipe("transformer").model
    layer.shim.dtype = "fp32"
    doc = nlp.make_doc("One two three four five six seven")
    (data,) = layer.predict([doc]).doc_data
    assert (np.array(data.align.lengths) > 0).tolist() == [True] * 7
    doc = nlp.make_doc("One two three four five six")
    (data,) = layer.predict([doc]).doc_data
    assert (np.array(data.align.lengths) > 0).tolist() == [True] * 4 + [False] * 2


@given(st.text(alphabet="ab .'-\n\t😀é", max_size=60))
def test_random_text_alignment_matches_spacy_transformers(tiny_nlp: Language, text: str) -> None:
    check_same(tiny_nlp, ["begin", text, "the end"])


@pytest.fixture(scope="module")
def tiny_nlp(tiny_transformer: str) -> Language:
    return pipeline(tiny_transformer, 4, 3)


def test_slow_tokenizer_alignment_matches_spacy_transformers(phobert: str) -> None:
    nlp = make_over_phobert(phobert)
    texts = ["Hà Nội là thủ đô", "", "H@@ à 😀 !", "Anh ấy ở Huế . " * 30]
    check_same(nlp, texts)
    layer, docs = nlp.get_pipe("transformer").model, [*map(nlp.make_doc, texts)]
    learned, predicted = layer.begin_update(docs)[0], layer.predict(docs)
    assert_array_equal(learned.align.lengths, predicted.align.lengths)
    assert_array_equal(learned.align.dataXd, predicted.align.dataXd)


def test_encode_windows_passes_token_types() -> None:
    """Some transformers, such as XLNet, identify the last token of a text by its token type."""
    wordpieces = windows_of.Wordpieces(
        strings=[["a", "<cls>"], ["b", "c", "<cls>"]],
        lengths=np.array([2, 3]),
        ids=np.array([5, 1, 6, 7, 1]),
        types=np.array([0, 2, 0, 0, 2]),
        starts=np.array([0, 1, 0, 2, 3]),
        ends=np.array([1, 1, 1, 3, 3]),
    )
    nlp = spacy.blank("en")
    docs = [nlp("a"), nlp("b c")]
    seen = []

    def forward_fn(ids: torch.Tensor, mask: torch.Tensor, types: Any) -> torch.Tensor:
        seen.append((ids.tolist(), mask.tolist(), types.tolist()))
        return ids[..., None].float()

    windows = [[doc[:]] for doc in docs]
    padding = windows_of.Padding("<pad>", 9)
    encoded = batching.encode_windows(
        docs, windows, wordpieces, padding, forward_fn, windows_of.CPU
    )
    assert seen == [
        ([[6, 7, 1], [5, 1, 9]], [[True] * 3, [True, True, False]], [[0, 0, 2], [0, 2, 0]])
    ]
    assert [vectors(data).ravel().tolist() for data in encoded.doc_data] == [[5], [6, 7]]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.integers(1, 200),
    st.integers(0, 40),
)
def test_batches_contain_each_window_once_within_limits(
    lengths: list[int], most: int, padding: int
) -> None:
    limits = windows_of.BatchLimits(most, padding)
    found = [batch.tolist() for batch in windows_of.batches(np.array(lengths), limits)]
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    in_order = [lengths[i] for batch in found for i in batch]
    assert in_order == sorted(in_order, reverse=True)
    for batch in found:
        sizes = [lengths[i] for i in batch]
        padded = len(sizes) * max(sizes)
        assert len(sizes) == 1 or padded <= most
        assert padded - sum(sizes) <= padding


@pytest.mark.parametrize("limits", [windows_of.CPU, windows_of.CPU_BF16])
def test_batches_of_realistic_lengths_pad_under_ten_percent(limits: windows_of.BatchLimits) -> None:
    lengths = np.random.default_rng(0).gamma(2.0, 15.0, 512).astype(int) + 3
    padded = sum(lengths[batch].max() * len(batch) for batch in windows_of.batches(lengths, limits))
    assert padded < 1.1 * lengths.sum()


def test_training_output_of_one_window_matches_spacy_transformers(tiny_transformer: str) -> None:
    """Without dropout, whose random numbers differ; several windows are batched differently."""
    outputs = []
    for architecture in (
        "spacy-crf-ner.TransformerModel.v1",
        "spacy-transformers.TransformerModel.v3",
    ):
        settings = {"@architectures": architecture, "transformer_config": NO_DROPOUT}
        nlp = pipeline(tiny_transformer, **settings)
        layer = nlp.get_pipe("transformer").model
        assert type(layer).__module__.startswith(architecture.partition(".")[0].replace("-", "_"))
        spacy.util.fix_random_seed(0)
        outputs.append(layer.begin_update([nlp.make_doc(TEXTS[0])])[0].model_output)
    ours, theirs = outputs
    assert type(ours) is type(theirs) and [*ours] == [*theirs]
    for name in ours:
        assert torch.equal(ours[name], theirs[name])


def trained_alone(layer: Any, output: Any, d_states: Any) -> list[Any]:
    """The gradients of the weights if each window runs alone, without thinc."""
    module, mask = layer.shim._model, output.wordpieces.attention_mask
    module.zero_grad()
    for ids, types, own, d in zip(
        output.wordpieces.input_ids, output.wordpieces.token_type_ids, mask, d_states
    ):
        inputs = [torch.tensor(each[own > 0])[None] for each in (ids, types)]
        states = module(input_ids=inputs[0], token_type_ids=inputs[1]).last_hidden_state
        (states[0] * torch.tensor(d[own > 0])).sum().backward()
    return gradients(module)


def gradients(module: Any) -> list[Any]:
    found = [weights.grad for weights in module.parameters()]
    return [None if each is None else each.to_dense().clone().numpy() for each in found]


def begin_training(layer: Any, docs: Any) -> Any:
    """Returns the output, its backward callback, and the shape of each call of the transformer."""
    shapes: list[Any] = []
    hook = layer.shim._model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    output, backprop = layer.begin_update(docs)
    hook.remove()
    return output, backprop, shapes


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("limit", [3, 40, 10_000])
def test_training_gradients_match_sum_over_single_windows(
    tiny_transformer: str, limit: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spacy_crf_ner.ml.transformer.shim.CPU", windows_of.BatchLimits(200, limit))
    nlp = pipeline(tiny_transformer, transformer_config=NO_DROPOUT)
    layer = nlp.get_pipe("transformer").model
    layer.shim.bf16 = bf16
    docs = [nlp.make_doc(text) for text in TEXTS]
    output, backprop, shapes = begin_training(layer, docs)
    mask = output.wordpieces.attention_mask
    assert sum(B for B, _ in shapes) == len(mask) and len(shapes) > 1
    assert sum(B * T for B, T in shapes) < mask.size
    states = output.model_output.last_hidden_state.detach().numpy()
    assert states.dtype == np.float32
    d_states = np.random.default_rng(0).normal(size=states.shape).astype("f") * mask[..., None]
    rows = np.cumsum([0, *(len(of_doc) for of_doc in output.spans)])
    earlier = [np.ones(weights.shape, "f") for weights in layer.shim._model.parameters()]
    for weights, gradient in zip(layer.shim._model.parameters(), earlier):
        weights.grad = torch.tensor(gradient)  # of another batch
    backprop(output.unsplit_by_doc([[d_states[i:j]] for i, j in pairwise(rows)]))
    found = gradients(layer.shim._model)
    expected = trained_alone(layer, output, d_states)
    tolerance = 0.1 if bf16 else 1e-4
    for ours, alone, before in zip(found, expected, earlier):
        alone = 0.0 if alone is None else alone
        scale = max(1.0, float(np.abs(alone).max()))
        assert_allclose((ours - before) / scale, alone / scale, atol=tolerance)
    for own, row, ids in zip(mask, states, output.wordpieces.input_ids):
        alone = layer.shim._model(input_ids=torch.tensor(ids[own > 0])[None]).last_hidden_state
        assert_allclose(row[own > 0], alone[0].detach(), atol=0.1 if bf16 else 1e-5)
    every = layer.shim._model(
        input_ids=torch.tensor(output.wordpieces.input_ids), attention_mask=torch.tensor(mask)
    )
    assert type(output.model_output) is type(every) and [*output.model_output] == [*every]
    pooled, expected = output.model_output.pooler_output, every.pooler_output
    assert_allclose(pooled.detach(), expected.detach(), atol=0.1 if bf16 else 1e-5)


def test_shim_training_passes_token_types(
    tiny_transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spacy_crf_ner.ml.transformer.shim.CPU", windows_of.BatchLimits(200, 0))
    shim = (
        pipeline(tiny_transformer, transformer_config=NO_DROPOUT).get_pipe("transformer").model.shim
    )
    lengths = [3, 7, 5]
    ids, types = (torch.zeros(3, 7, dtype=torch.long) for _ in range(2))
    mask = torch.zeros(3, 7)
    for i, n in enumerate(lengths):
        ids[i, :n], types[i, :n], mask[i, :n] = 7, torch.arange(n) % 2, 1.0
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    output, _ = shim.begin_update(ArgsKwargs(args=(), kwargs=given))
    for i, n in enumerate(lengths):
        own = {"input_ids": ids[i : i + 1, :n], "token_type_ids": types[i : i + 1, :n]}
        alone = shim._model(**own).last_hidden_state[0]
        torch.testing.assert_close(output.last_hidden_state[i, :n], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("setting", ["output_hidden_states", "output_attentions"])
def test_training_with_additional_outputs_uses_one_batch(
    tiny_transformer: str, setting: str
) -> None:
    nlp = pipeline(tiny_transformer, transformer_config={setting: True})
    layer = nlp.get_pipe("transformer").model
    output, _, shapes = begin_training(layer, [nlp.make_doc(text) for text in TEXTS])
    assert shapes == [output.wordpieces.input_ids.shape]
    assert output.model_output[setting.removeprefix("output_")] is not None


def test_training_with_left_padding_uses_one_batch(tiny_transformer: str) -> None:
    nlp = pipeline(tiny_transformer)
    layer = nlp.get_pipe("transformer").model
    layer.tokenizer.padding_side = "left"
    output, _, shapes = begin_training(layer, [nlp.make_doc(text) for text in TEXTS])
    assert not output.wordpieces.attention_mask[:, 0].all()
    assert shapes == [output.wordpieces.input_ids.shape]

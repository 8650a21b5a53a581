"""The network: each setting has its effect, and each parameter learns."""

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from spacy_crf_ner.crf import Chain, constrain, nll_with_gradient
from spacy_crf_ner.ml.bilstm_crf import BiLSTMCRF, BiLSTMCRFConfig
from spacy_crf_ner.tags import TagScheme

RNNS = ("lstm", "gru", "rnn", "none")
SCHEME = TagScheme("bio", ("PER", "LOC"))
N_IN, N_TAGS = 6, len(SCHEME.tags)


def config(**changes: Any) -> BiLSTMCRFConfig:
    plain = {"rnn": "lstm", "hidden_width": 5, "depth": 1, "bidirectional": True, "dropout": None}
    return BiLSTMCRFConfig(**(plain | changes))


def make(**changes: Any) -> BiLSTMCRF:
    torch.manual_seed(0)
    return BiLSTMCRF(config(**changes), N_IN, N_TAGS)


def docs_of(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, N_IN, generator=generator) for length in lengths]


def run(network: BiLSTMCRF, docs: list[Tensor], dropout: float = 0.0) -> tuple[Tensor, ...]:
    lengths = torch.tensor([len(doc) for doc in docs], dtype=torch.int64)
    return network(torch.cat(docs), lengths, dropout)


# Dropout


@pytest.mark.parametrize("depth, drops", [(1, False), (2, True)])
@pytest.mark.filterwarnings("error")
def test_dropout_applies_between_rnn_layers(
    depth: int, drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make(depth=depth)
    # Without what goes into and comes out of the encoder.
    monkeypatch.setattr("spacy_crf_ner.ml.bilstm_crf.fast_dropout", lambda X, rate, training: X)
    once, again = (run(network, docs_of(4), 0.5)[0] for _ in range(2))
    assert torch.equal(once, again) == (not drops)


# Parameters


@pytest.mark.parametrize("rnn", RNNS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("dense_width", [0, 16])  # wide enough that no row of weights is dead
@pytest.mark.parametrize("decoder", ["crf", "softmax"])
def test_all_parameters_get_gradients_and_softmax_has_no_transitions(
    rnn: str, depth: int, dense_width: int, decoder: str
) -> None:
    network = make(rnn=rnn, depth=depth, dense_width=dense_width, decoder=decoder)
    docs = docs_of(3, 0, 5)
    outputs = run(network, docs)
    emissions, transitions, start, end = (output.detach().numpy() for output in outputs)
    lengths = torch.tensor([3, 0, 5]).numpy()
    chain = Chain(emissions, lengths, transitions, start, end)
    if decoder == "crf":
        chain = constrain(chain, *SCHEME.constraints)
    biluo = ["B-PER", "L-PER", "O", "U-LOC", "U-LOC", "O", "B-LOC", "L-LOC"]
    _, gradient = nll_with_gradient(chain, SCHEME.ids(biluo))
    d_outputs = (gradient.emissions, gradient.transitions, gradient.start, gradient.end)
    learned = [(y, torch.from_numpy(dy)) for y, dy in zip(outputs, d_outputs) if y.requires_grad]
    torch.autograd.backward(*zip(*learned))

    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    # Only legal transitions have gradients.
    if decoder == "softmax":
        assert not any(scores.any() for scores in outputs[1:])
    else:
        follows, first, last = (torch.from_numpy(legal) for legal in SCHEME.constraints)
        assert torch.equal(network.crf.transitions.grad != 0, follows)
        assert torch.equal(network.crf.start_transitions.grad != 0, first)
        assert torch.equal(network.crf.end_transitions.grad != 0, last)


@pytest.mark.parametrize("rnn", ["lstm", "gru", "rnn"])
def test_projection_with_skip_reads_encoder_output_and_token_vectors(rnn: str) -> None:
    network, plain = make(rnn=rnn, skip=True), make(rnn=rnn)
    plain.encoder.load_state_dict(network.encoder.state_dict())
    docs = docs_of(3, 0, 5)
    encoded = plain.encoder(torch.cat(docs), torch.tensor([3, 0, 5]), 0.0)
    of_encoded, of_vectors = network.projection.weight.split([plain.encoder.nO, N_IN], dim=1)
    expected = encoded @ of_encoded.T + torch.cat(docs) @ of_vectors.T + network.projection.bias
    assert_close(run(network, docs)[0], expected)
    assert not run(network, docs_of(0, 0))[0].numel()
    X = torch.cat(docs)
    read = network.encoder(X, torch.tensor([3, 0, 5]), 0.5)[:, plain.encoder.nO :]
    assert_close(read, torch.where(read == 0.0, 0.0, 2 * X))  # dropout is on both
    assert (read == 0.0).any() and read.any()


# Settings


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("rnn", "LSTM", "one of ['lstm', 'gru', 'rnn', 'none']"),
        ("hidden_width", 0, "1 or more"),
        ("depth", 0, "1 or more"),
        ("dense_width", -1, "0 or more"),
        ("dropout", 1.0, "null, or from 0 to below 1"),
        ("dropout", -0.1, "null, or from 0 to below 1"),
        ("decoder", "viterbi", "one of ['crf', 'softmax']"),
    ],
)
def test_setting_out_of_range_raises_with_range(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError) as error:
        config(**{name: value})
    assert str(error.value) == f"{name}: expected {expected}, got {value!r}."


def test_settings_at_range_limits_are_accepted() -> None:
    ends = {"hidden_width": 1, "depth": 1, "dense_width": 0, "dropout": 0.0, "rnn": "none"}
    assert asdict(config(**ends)).items() >= ends.items()

"""Weights in the format safetensors: what is written is read, and nothing larger is built."""

import pytest
import torch
from safetensors.torch import load
from torch import nn

from pipelines import TRANSFORMERS, small_transformers
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.checksummed import seal, unseal
from spacy_crf_ner.ml.stored_weights import build_without_weights, weights_to_bytes


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_each_flipped_byte_is_found(size: int) -> None:
    data = bytes(range(256)) * 4
    sealed = seal(data[:size])
    assert unseal(sealed) == data[:size]
    for at in {*range(0, len(sealed), 7), *range(30), len(sealed) - 1} & {*range(len(sealed))}:
        with pytest.raises(InputError, match="weights cannot be read: they"):
            unseal(sealed[:at] + bytes([sealed[at] ^ 16]) + sealed[at + 1 :])
        with pytest.raises(InputError, match="weights cannot be read: they"):
            unseal(sealed[:at])


@pytest.fixture(scope="module")
def transformers() -> dict[str, nn.Module]:
    return small_transformers()


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_transformers_of_all_kinds_are_built_for_their_weights(
    kind: str, transformers: dict[str, nn.Module]
) -> None:
    """Without memory, as a network of any config could need; with them the weights are the same."""
    transformer = transformers[kind]

    def build() -> nn.Module:
        return type(transformer)(transformer.config)

    stored = load(weights_to_bytes(transformer))
    skeleton = build_without_weights(build, stored)
    devices = {parameter.device.type for parameter in skeleton.parameters()}
    assert devices == ({"meta", "cpu"} if kind == "xlnet" else {"meta"})  # it names the type
    built = build()
    built.load_state_dict(stored)
    for name, weights in transformer.state_dict().items():
        assert torch.equal(built.state_dict()[name], weights), name
    del stored[next(iter(stored))]
    with pytest.raises(InputError, match=r"of another architecture.*one of 1 differences"):
        build_without_weights(build, stored)


def test_tied_weights_are_stored() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    stored = load(weights_to_bytes(tied))
    assert all(torch.equal(stored[name], each) for name, each in tied.state_dict().items())


def test_network_with_larger_tables_than_weights_is_refused() -> None:
    """As a mask of GPT-2: a buffer that is not among the weights."""

    class WithTable(nn.Linear):
        def __init__(self, positions: int) -> None:
            super().__init__(2, 2)
            self.register_buffer("mask", torch.ones(positions, positions), persistent=False)

    stored = load(weights_to_bytes(WithTable(10)))
    build_without_weights(lambda: WithTable(100), stored)
    with pytest.raises(InputError, match="expected tables of less than"):
        build_without_weights(lambda: WithTable(10**6), stored)

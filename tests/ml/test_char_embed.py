"""Token vectors from spelling: one learned vector per word, independent of its position."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import spacy
import torch
from numpy.testing import assert_allclose
from spacy.attrs import NORM, SHAPE
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import load_config, load_model_from_config
from spacy.vectors import Vectors
from spacy.vocab import Vocab
from thinc.api import SGD, HashEmbed, Model, set_dropout_rate
from torch import Tensor

from pipelines import make_examples
from spacy_crf_ner.ml import words as features
from spacy_crf_ner.ml.char_embed import CharCNN, WordEmbedding, char_word_embed, read_words

ARCHITECTURE = "spacy-crf-ner.CharWordEmbed.v1"
VOCAB = spacy.blank("en").vocab
# Many lengths and scripts, whitespace, and words that differ in case or in length only.
WORDS = ["Tim", "tim", "a", "aa", "Hanoi", "Việt-Nam", "東京", "😀", " ", "\n", "2024", "'s"]
WORDS += ["internationalisation", "Кириллица", "e\u0301", "\0"]

# Small, and of different widths, so that no two can be taken for each other.
PARTS = {"chars": "none", "char_width": 6, "char_embed": 4}
PARTS |= {"word_width": 0, "word_rows": 50, "shape_width": 0, "shape_rows": 20}
ALL = {"chars": "cnn", "word_width": 5, "shape_width": 3}
READERS = ("cnn", "lstm")


def doc_of(*words: str, vocab: Vocab = VOCAB) -> Doc:
    return Doc(vocab, words=list(words))


def build(**switched_on: Any) -> Model[list[Doc], Any]:
    return char_word_embed(**(PARTS | switched_on))


def make(vocab: Vocab = VOCAB, **switched_on: Any) -> Model[list[Doc], Any]:
    spacy.util.fix_random_seed(0)
    model = build(**switched_on)
    model.initialize(X=[doc_of("a", vocab=vocab)])
    return model


def module_of(model: Model[Any, Any]) -> WordEmbedding:
    return cast(WordEmbedding, model.shims[0].module)


def vectors_of(model: Model[list[Doc], Any], *words: str, vocab: Vocab = VOCAB) -> np.ndarray:
    """The vector of each word, of a batch of its own: (N, nO)."""
    return np.concatenate([model.predict([doc_of(word, vocab=vocab)])[0] for word in words])


def hash_embed(table: Tensor, seed: int, ids: Sequence[int]) -> np.ndarray:
    """Return the output of thinc's HashEmbed with this table for ids."""
    layer = HashEmbed(table.shape[1], table.shape[0], seed=seed)
    layer.initialize()
    layer.set_param("E", table.detach().numpy())
    return cast(np.ndarray, layer.predict(np.array(ids, dtype=np.uint64)))


# Parts of a vector


@pytest.mark.parametrize("chars", ["cnn", "lstm", "none"])
@pytest.mark.parametrize("word_width", [0, 5])
@pytest.mark.parametrize("shape_width", [0, 3])
def test_output_width_equals_sum_of_enabled_parts(
    chars: str, word_width: int, shape_width: int
) -> None:
    settings = {"chars": chars, "word_width": word_width, "shape_width": shape_width}
    width = (0 if chars == "none" else 6) + word_width + shape_width
    if not width:
        with pytest.raises(ValueError, match="Switch one on"):
            build(**settings)
        return
    assert build(**settings).get_dim("nO") == width
    model = make(**settings)
    Y = model.predict([doc_of("a", "b"), doc_of(), doc_of("a")])
    assert [y.shape for y in Y] == [(2, width), (0, width), (1, width)]
    assert {y.dtype for y in Y} == {np.dtype("float32")}


def read_alone(module: WordEmbedding, word: str) -> Tensor:
    """Read one word, without padding, by the definition."""
    points = [ord(char) for char in word]
    letters = torch.from_numpy(hash_embed(module.alphabet.weight, features.CHAR_SEED, points))
    if module.config.chars == "cnn":
        weights = module.reader.convolution
        read = torch.nn.functional.conv1d(letters.T, weights.weight, weights.bias, padding=1)
        return torch.relu(read).max(1).values
    lstm = torch.nn.LSTM(4, 3, bidirectional=True)
    lstm.load_state_dict(module.reader.lstm.state_dict())
    states = lstm(letters)[0]  # (L, 6)
    return torch.cat([states[-1, :3], states[0, 3:]])


@pytest.mark.parametrize("chars", READERS)
def test_vectors_are_those_of_parts_without_padding_in_order_of_settings(chars: str) -> None:
    model = make(**(ALL | {"chars": chars}))
    module, doc = module_of(model), doc_of(*WORDS)
    expected = np.concatenate(
        [
            [read_alone(module, word.text).detach().numpy() for word in doc],
            hash_embed(module.norms.weight, features.NORM_SEED, doc.to_array(NORM)),
            hash_embed(module.shapes.weight, features.SHAPE_SEED, doc.to_array(SHAPE)),
        ],
        axis=1,
    )
    found = model.predict([doc])[0]
    assert_allclose(found, expected, atol=1e-6)
    assert len({vector.tobytes() for vector in found[:, :6].round(5)}) == len(WORDS)


def test_token_norm_overrides_lexeme_norm() -> None:
    model = make(**ALL)
    doc = doc_of("gonna", "gonna", "going")
    doc[1].norm_ = "going"
    plain, own, going = model.predict([doc])[0]
    assert_allclose(own[6:11], going[6:11])
    assert abs(plain - own)[6:11].max() > 1e-3
    assert_allclose(np.delete(plain, range(6, 11)), np.delete(own, range(6, 11)))
    assert_allclose(vectors_of(model, "gonna")[0], plain, atol=1e-6)


# Batches


@pytest.mark.parametrize("chars", READERS)
def test_word_vector_does_not_depend_on_batch(chars: str) -> None:
    model = make(**(ALL | {"chars": chars}))
    alone = dict(zip(WORDS, vectors_of(model, *WORDS)))
    random = Random(0)
    for _ in range(5):
        docs = [doc_of(*random.choices(WORDS, k=random.randrange(9))) for _ in range(6)]
        for doc, vectors in zip(docs, model.predict(docs)):
            assert len(doc) == len(vectors)
            for token, vector in zip(doc, vectors):
                assert_allclose(vector, alone[token.text], atol=1e-6)


def test_char_reader_reads_each_distinct_word_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(**ALL)
    read = []
    module_of(model).reader.register_forward_hook(lambda _, X, Y: read.append(tuple(Y.shape)))
    docs = [doc_of("the", "cat", "the"), doc_of(), doc_of(*["cat", "sat"] * 50)]
    Y = model.predict(docs)
    assert [len(y) for y in Y] == [3, 0, 100]
    assert read == [(3, 6)]
    words, tokens = read_words(docs, module_of(model))
    assert words.chars.shape == (3, 3)
    assert len(words.alphabet) == len(set("thecatsat"))
    assert [len(numbers) for numbers in (words.norms, words.shapes, words.vectors)] == [3] * 3
    assert tokens.shape == (103,)


@pytest.mark.parametrize("docs", [[], [()], [(), ()]])
@pytest.mark.parametrize("chars", READERS)
def test_docs_without_tokens_return_empty_vectors(docs: list[tuple[str, ...]], chars: str) -> None:
    model = make(**(ALL | {"chars": chars}))
    X = [doc_of(*words) for words in docs]
    assert [y.shape for y in model.predict(X)] == [(0, 14)] * len(docs)
    Y, backprop = model.begin_update(X)
    assert [y.shape for y in Y] == [(0, 14)] * len(docs)
    assert backprop(Y) is X
    before = model.to_bytes()
    model.finish_update(SGD(0.1))
    assert model.to_bytes() == before


# Characters


def test_characters_of_different_scripts_have_distinct_vectors() -> None:
    """Modulo a table of 1024 rows, a Cyrillic letter would be the digit 0."""
    blocks = [(0x20, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1EA0, 0x1F00)]
    blocks += [(0x2010, 0x2060), (0x3040, 0x3100), (0x4E00, 0x5000), (0x1F600, 0x1F650)]
    points = [point for block in blocks for point in range(*block)]
    table = module_of(make(chars="cnn")).alphabet.weight
    vectors = hash_embed(table, features.CHAR_SEED, points)
    assert len({vector.tobytes() for vector in vectors}) == len(points)


def test_batch_with_different_vocabs_matches_single_docs() -> None:
    model = make(chars="cnn", shape_width=3)
    docs = [doc_of("Zyxqw", "Lund", vocab=Vocab()), doc_of("Ann"), doc_of("Foo", vocab=Vocab())]
    alone = [model.predict([doc])[0] for doc in docs]
    for found, expected in zip(model.predict(docs), alone):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("chars", READERS)
def test_long_word_uses_first_and_last_25_characters(chars: str) -> None:
    model = make(chars=chars)
    start, end = "https://a.very.long/addre", "ss?with=a&question=of.html"[-25:]
    assert len(start) == len(end) == 25
    long = [start + middle + end for middle in ("x", "yz", "я" * 10_000)]
    doc = doc_of(*long, start + end, start + "x" + end + ".")
    words, _ = read_words([doc], module_of(model))
    assert words.chars.shape == (5, 50)
    *same, whole, other = model.predict([doc])[0]
    for vector in same:
        assert_allclose(vector, whole, atol=1e-6)
    assert abs(other - whole).max() > 1e-3


# Static vectors


def with_vectors(**options: Any) -> Vocab:
    """A vocab with vectors for Paris, tim and Tim."""
    vocab = spacy.blank("en").vocab
    table = np.arange(1, 13, dtype="f").reshape(3, 4)
    keys = ["Paris", "tim", "Tim"]
    vocab.vectors = Vectors(strings=vocab.strings, data=table, keys=keys, **options)
    for key in keys:
        vocab.strings.add(key)
    return vocab


FLORET = {"mode": "floret", "minn": 2, "maxn": 3, "hash_count": 2}


def with_floret() -> Vocab:
    vocab = spacy.blank("en").vocab
    table = np.random.default_rng(0).normal(size=(20, 4)).astype("f")
    vocab.vectors = Vectors(strings=vocab.strings, data=table, **FLORET)
    return vocab


def test_static_vectors_fall_back_to_lower_case_then_zeros() -> None:
    vocab = with_vectors()
    assert build(static_vectors=True, shape_width=3).has_dim("nO") is None
    model = make(vocab, static_vectors=True, shape_width=3)
    assert model.get_dim("nO") == 3 + 4
    words = ["tim", "Hanoi", "Tim", "TIM", "Paris", "paris", "tim"]
    found = model.predict([doc_of(*words, vocab=vocab)])[0][:, 3:]
    tim, Tim, Paris, zeros = [5, 6, 7, 8], [9, 10, 11, 12], [1, 2, 3, 4], [0] * 4
    assert found.tolist() == [tim, zeros, Tim, tim, Paris, zeros, tim]
    assert vocab.vectors["Tim"].tolist() == Tim


def test_static_vectors_with_attr_norm_use_token_norm() -> None:
    vocab = with_vectors(attr="NORM")
    model = make(vocab, static_vectors=True)
    doc = doc_of("Tim", "Tim", "Lutetia", vocab=vocab)
    doc[2].norm_ = "Paris"
    doc[1].norm_ = "Hanoi"
    # The norm of Tim is tim. Hanoi has no vector, so that of the lower-case word, tim, is used.
    assert model.predict([doc])[0].tolist() == [[5, 6, 7, 8], [5, 6, 7, 8], [1, 2, 3, 4]]


def test_floret_has_a_vector_of_every_word() -> None:
    vocab = with_floret()
    model = make(vocab, static_vectors=True)
    doc = doc_of(*WORDS, vocab=vocab)
    assert_allclose(model.predict([doc])[0], [vocab[word].vector for word in WORDS], atol=1e-6)
    assert model.predict([doc])[0].any(axis=1).all()


@pytest.mark.parametrize("X", [None, [], [doc_of("a")]])
def test_initialize_without_static_vectors_raises(X: Any) -> None:
    with pytest.raises(ValueError, match=r"expected docs with vectors.*spacy init vectors"):
        build(static_vectors=True).initialize(X=X)


def test_predict_with_static_vectors_of_another_width_raises() -> None:
    model = make(with_vectors(), static_vectors=True)
    fresh = build(static_vectors=True).from_bytes(model.to_bytes())
    with pytest.raises(ValueError, match=r"expected a width of 4.* got 0"):
        fresh.predict([doc_of("a")])
    assert fresh.predict([doc_of()])[0].shape == (0, 4)


@pytest.mark.parametrize("make_vocab", [with_vectors, with_floret])
def test_static_vectors_are_neither_learned_nor_stored(make_vocab: Any) -> None:
    vocab = make_vocab()
    before = vocab.vectors.data.copy()
    model = make(vocab, static_vectors=True)
    Y, backprop = model.begin_update([doc_of("Tim", "Tim", "Hanoi", vocab=vocab)])
    backprop([np.ones_like(y) for y in Y])
    model.finish_update(SGD(0.1))
    np.testing.assert_array_equal(vocab.vectors.data, before)
    assert not list(module_of(model).parameters())
    model.initialize(X=[doc_of("a", vocab=vocab)])  # again


def test_char_config_accepts_static_vectors(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.vocab.vectors = with_vectors().vectors
    nlp.to_disk(tmp_path / "vectors")
    overrides = {
        "paths.vectors": str(tmp_path / "vectors"),
        "components.ner.model.tok2vec.*.words.static_vectors": True,
    }
    path = Path(__file__).parents[2] / "configs" / "char.cfg"
    nlp = load_model_from_config(load_config(path, overrides), auto_fill=True)
    nlp.initialize(lambda: make_examples(nlp))
    tok2vec = nlp.get_pipe("ner").model.get_ref("tok2vec")
    assert tok2vec.get_dim("nO") == 96 + 50 + 100 + 25 + 4
    assert tok2vec.predict([nlp.make_doc("Tim")])[0][0, -4:].tolist() == [9, 10, 11, 12]
    nlp.to_disk(tmp_path / "trained")
    loaded = spacy.load(tmp_path / "trained")
    docs = [nlp.make_doc("Tim Cook visited Hanoi"), nlp.make_doc("東京 !")]
    one, other = (pipeline.get_pipe("ner").model.predict(docs) for pipeline in (nlp, loaded))
    np.testing.assert_array_equal(one.emissions, other.emissions)


# Learning


@pytest.mark.parametrize("chars", READERS)
def test_gradients_match_finite_differences(chars: str) -> None:
    """In float64, of four words of six tokens."""
    module = module_of(make(**(ALL | {"chars": chars}))).double()
    words, tokens = read_words([doc_of("Tim", "a", "東京", "a", "b2", "Tim")], module)
    words = words._replace(vectors=words.vectors.double())
    state = dict(module.named_parameters())
    # Only a few rows of each table: the others are unused or behave the same.
    moved = {name: p.detach().clone() for name, p in state.items()}

    def function(*values: Tensor) -> Tensor:
        given = dict(zip(moved, values))
        for name, rows in used.items():
            given[name] = moved[name].index_put((rows,), given[name])
        return torch.func.functional_call(module, given, (words, tokens, 0.0))

    used = {
        "alphabet.weight": words.alphabet.unique()[:6],
        "norms.weight": words.norms.unique()[:6],
        "shapes.weight": words.shapes.unique()[:6],
    }
    assert set(used) <= set(moved)
    values = [value[used[name]] if name in used else value for name, value in moved.items()]
    assert torch.autograd.gradcheck(function, [value.requires_grad_() for value in values])


def test_cnn_gradients_with_repeated_characters_match_torch() -> None:
    """Equal maxima share the gradient."""
    spacy.util.fix_random_seed(0)
    words = "banana", "......", "-" * 40, "Anna", "a"
    table = torch.zeros((len(words), max(map(len, words))), dtype=torch.int64)
    for row, word in zip(table, words):
        row[: len(word)] = torch.tensor([ord(char) - 40 for char in word])
    reader = CharCNN(5, 8).double()
    letters = torch.randn(100, 5, dtype=torch.float64)
    letters[0] = 0
    given = torch.randn(len(words), 8, dtype=torch.float64) - 1  # mostly negative
    (reader(letters, table) * given).sum().backward()
    # The convolution of torch over each word, and the maximum over its characters.
    expected = [torch.zeros_like(p) for p in reader.parameters()]
    for word, row in zip(words, given):
        each = letters[[ord(char) - 40 for char in word]].T
        best = torch.relu(reader.convolution(each[None])[0].amax(1))
        for total, part in zip(expected, torch.autograd.grad(best @ row, [*reader.parameters()])):
            total += part
    for parameter, gradient in zip(reader.parameters(), expected):
        assert parameter.grad is not None
        assert_allclose(parameter.grad.numpy(), gradient.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("own, given, drops", [(None, 0.5, 1), (None, 0.0, 0), (0.5, 0.0, 1)])
def test_dropout_is_independent_per_token_in_training_only(
    own: Any, given: float, drops: int
) -> None:
    model = make(**ALL, dropout=own)
    set_dropout_rate(model, given)
    X = [doc_of(*["Tim"] * 2000)]
    kept = model.predict(X)[0]
    np.testing.assert_array_equal(kept, kept[:1].repeat(2000, 0))
    dropped = model.begin_update(X)[0][0]
    assert_allclose(dropped[dropped != 0], (kept / (1 - 0.5 * drops))[dropped != 0], rtol=1e-5)
    share = ((dropped == 0) & (kept != 0)).sum() / (kept != 0).sum()
    assert len({(token == 0).tobytes() for token in dropped}) > 100 * drops
    # 22,000 throws or more at 0.5: the standard deviation of their mean is 0.0034.
    assert share == pytest.approx(0.5 * drops, abs=5 * 0.0034)


# Pipelines


@pytest.mark.parametrize("chars", READERS)
def test_spacy_tagger_learns_over_char_word_embed(chars: str) -> None:
    nlp = spacy.blank("en")
    widths = {"char_width": 10, "word_width": 0, "shape_width": 0}
    tok2vec = {"@architectures": ARCHITECTURE, "chars": chars, **widths}
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}
    nlp.add_pipe("tagger", config={"model": model})
    random = Random(0)
    words = [
        "".join(random.choices("bdfklm", k=3)) + random.choice(["ly", "ing"]) for _ in range(40)
    ]
    tags = ["ADV" if word.endswith("ly") else "VERB" for word in words]
    doc = nlp.make_doc(" ".join(words))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: [Example.from_dict(doc, {"tags": tags})])
    optimizer.learn_rate = 0.02
    for _ in range(20):
        nlp.update([Example.from_dict(doc, {"tags": tags})], sgd=optimizer)
    assert [token.tag_ for token in nlp(" ".join(words))] == tags


# Settings


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("chars", "CNN", "one of ['cnn', 'lstm', 'none']"),
        ("char_width", 0, "1 or more"),
        ("char_embed", 0, "1 or more"),
        ("word_width", -1, "0 or more"),
        ("word_rows", 0, "1 or more"),
        ("shape_width", -1, "0 or more"),
        ("shape_rows", 0, "1 or more"),
        ("dropout", 1.0, "null, or from 0 to below 1"),
        ("dropout", -0.1, "null, or from 0 to below 1"),
    ],
)
def test_setting_out_of_range_raises_with_range(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**(ALL | {name: value}))
    assert str(error.value) == f"{name}: expected {expected}, got {value!r}."


def test_lstm_with_odd_char_width_raises() -> None:
    with pytest.raises(ValueError, match=r"char_width: expected an even number.*, got 5"):
        build(chars="lstm", char_width=5)
    build(chars="cnn", char_width=5)


def test_settings_at_range_limits_are_accepted() -> None:
    ends = {"char_width": 1, "char_embed": 1, "word_width": 1, "word_rows": 1, "shape_rows": 1}
    model = make(chars="cnn", shape_width=1, dropout=0.0, **ends)
    assert model.predict([doc_of("a")])[0].shape == (1, 3)

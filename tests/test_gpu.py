"""On a GPU: training in mixed precision, and the same entities as on the CPU."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import spacy
import torch
from thinc.api import get_current_ops, set_current_ops
from thinc.compat import has_cupy_gpu, has_torch_cuda_gpu

from pipelines import LISTENER, SENTENCES, make_examples
from spacy_crf_ner import crf
from spacy_crf_ner.tags import TagScheme

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (has_cupy_gpu and has_torch_cuda_gpu), reason="no GPU that torch and cupy can use"
    ),
]
TEXTS = [text for text, _ in SENTENCES]


@pytest.fixture
def gpu():
    """Work on the GPU, and give the CPU back."""
    ops = get_current_ops()
    spacy.require_gpu()
    yield
    set_current_ops(ops)


SPANS = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ON_GPU = {"@misc": "spacy-crf-ner.on_gpu.v1"}


def pipeline(tiny_transformer, mixed_precision=ON_GPU):
    nlp = spacy.blank("en")
    transformer = {"@architectures": "spacy-crf-ner.TransformerModel.v1", "get_spans": SPANS}
    transformer |= {"name": tiny_transformer, "mixed_precision": mixed_precision}
    transformer["transformer_config"] = NO_DROPOUT
    nlp.add_pipe("transformer", config={"model": transformer})
    model = {"hidden_width": 32, "tok2vec": LISTENER, "mixed_precision": mixed_precision}
    nlp.add_pipe("crf_ner", config={"model": model})
    return nlp


def test_trains_in_mixed_precision_and_predicts_as_on_the_cpu(gpu, tiny_transformer, tmp_path):
    spacy.util.fix_random_seed(0)
    nlp = pipeline(tiny_transformer)
    shim = nlp.get_pipe("crf_ner").model.get_ref("output_layer").shims[0]
    assert shim._mixed_precision
    examples = make_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.005
    losses = [nlp.update(examples, sgd=optimizer)["crf_ner"] for _ in range(60)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0] / 5
    assert next(shim.module.parameters()).is_cuda
    nlp.to_disk(tmp_path)
    on_gpu = [[(e.start, e.end, e.label_) for e in doc.ents] for doc in nlp.pipe(TEXTS)]
    spacy.require_cpu()
    loaded = spacy.load(tmp_path)
    on_cpu = [[(e.start, e.end, e.label_) for e in doc.ents] for doc in loaded.pipe(TEXTS)]
    assert on_gpu == on_cpu
    assert any(on_cpu)


def test_bf16_trains_in_bfloat16_without_a_scaler(gpu, tiny_transformer):
    """Each update moves the weights, where a scaler would skip the first ones."""
    spacy.util.fix_random_seed(0)
    nlp = pipeline(tiny_transformer, "bf16")
    optimizer = nlp.initialize(lambda: make_examples(nlp))
    transformer, head = (
        next(shim for node in nlp.get_pipe(name).model.walk() for shim in node.shims)
        for name in ("transformer", "crf_ner")
    )
    kinds = set()
    for module in (transformer._model.encoder.layer[0].output.dense, head._model.projection):
        module.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
    for shim in (transformer, head):
        assert not shim._grad_scaler._enabled
    before = head._model.projection.weight.detach().clone()
    loss = nlp.update(make_examples(nlp), sgd=optimizer)["crf_ner"]
    assert kinds == {torch.bfloat16}
    assert np.isfinite(loss) and (head._model.projection.weight != before).any()


@pytest.mark.parametrize("mixed_precision", [False, True, "bf16"])
def test_gradients_of_parts_add_up(gpu, tiny_transformer, mixed_precision):
    """In the precision of the gradients of one batch."""
    found = []
    for parts in ([0, 7], [0, 3, 5, 7]):
        spacy.util.fix_random_seed(0)
        nlp = pipeline(tiny_transformer, mixed_precision)
        examples = make_examples(nlp)
        nlp.initialize(partial(make_examples, nlp))
        head = nlp.get_pipe("crf_ner").model.get_ref("output_layer").shims[0]
        head._grad_scaler._scale.fill_(64.0)  # the first updates overflow otherwise
        for begin, end in pairwise(parts):
            nlp.update(examples[begin:end], sgd=False)
        assert not head._grad_scaler.found_inf
        found.append(head.module.projection.weight.grad.float().cpu())
    whole, summed = found
    torch.testing.assert_close(summed, whole, rtol=0.05, atol=0.05 * float(whole.abs().max()))


def test_scores_agree_with_the_cpu(gpu, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: make_examples(nlp))
    nlp.to_disk(tmp_path)
    docs = [nlp.make_doc(text) for text in TEXTS]
    on_gpu = nlp.get_pipe("crf_ner").model.predict(docs).emissions.get()
    spacy.require_cpu()
    loaded = spacy.load(tmp_path)
    on_cpu = loaded.get_pipe("crf_ner").model.predict(docs).emissions
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-3)


def test_crf_arithmetic_is_that_of_the_cpu(gpu):
    torch.manual_seed(0)
    B, T, C = 6, 20, 9
    mask = torch.arange(T)[None, :] < torch.tensor([20, 7, 1, 0, 13, 20])[:, None]
    free = crf.Chain(*(torch.randn(*size) for size in [(B, T, C), (C, C), (C,), (C,)]), mask)
    scheme = TagScheme("biluo", ("A", "B"))
    chain = crf.constrain(free, *map(torch.from_numpy, scheme.constraints))
    tags = torch.randint(0, C, (B, T))

    def everything(device):
        moved = crf.Chain(*(tensor.to(device) for tensor in chain))
        leaves = [scores.requires_grad_() for scores in moved[:4]]
        best, score = crf.viterbi(moved)
        log_p = crf.log_likelihood(moved, tags.to(device))
        legal = log_p > crf.FORBIDDEN / 2
        gradients = torch.autograd.grad(crf.log_partition(moved).sum(), leaves)
        where = [torch.tensor(x, device=device) for x in ([0, 4], [3, 11], [[0, 0], [0, -1]])]
        segments = crf.log_segment_marginals(moved, *where)
        results = [best, score, log_p[legal], *gradients, *crf.nbest(moved, 3), segments]
        return [result.detach().cpu() for result in results]

    torch.testing.assert_close(everything("cuda"), everything("cpu"), rtol=1e-4, atol=1e-4)

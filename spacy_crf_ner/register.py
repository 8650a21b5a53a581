"""Register all that configs name, for an application without the metadata of this package.

spaCy finds components and functions by the entry points of installed packages. A frozen
application, or one that has a copy of this package, lacks them: `import spacy_crf_ner.register`
before it loads a pipeline. Without torch, it registers what exported pipelines need.
"""

from contextlib import suppress
from typing import Any

from spacy.util import registry

from .data.token_rules import divide_tokens
from .input_error import InputError
from .ml.concatenate import concatenate
from .ml.onnx_network import onnx_network
from .ml.transformer.spans import doc_spans, sent_spans, sentence_windows, strided_spans
from .pipeline import crf_ner as crf_ner  # registers the factory
from .pipeline import shared_tok2vec as shared_tok2vec  # as well
from .pipeline.scorer import make_ner_scorer
from .training.calibration import calibrate_on_dev
from .training.distill_corpus import distill_corpus
from .training.labeled_corpora import labeled_corpora
from .training.rehearsal import add_labels, rehearse

# As in setup.cfg: kind, name and function.
FUNCTIONS: list[tuple[str, str, Any]] = [
    ("architectures", "ConcatenateVectors", concatenate),
    ("architectures", "OnnxNetwork", onnx_network),
    ("callbacks", "add_labels", add_labels),
    ("callbacks", "calibrate_on_dev", calibrate_on_dev),
    ("callbacks", "divide_tokens", divide_tokens),
    ("callbacks", "rehearse", rehearse),
    ("misc", "doc_spans", doc_spans),
    ("misc", "sentence_windows", sentence_windows),
    ("misc", "sent_spans", sent_spans),
    ("misc", "strided_spans", strided_spans),
    ("readers", "LabeledCorpora", labeled_corpora),
    ("readers", "DistillCorpus", distill_corpus),
    ("scorers", "ner_scorer", make_ner_scorer),
]

with suppress(InputError):  # without the extra "train"
    from .ml.char_embed import char_word_embed
    from .ml.network import bilstm_crf, rnn_encoder
    from .ml.transformer.model import transformer
    from .training.freezing import freeze_layers
    from .training.optimizer import GroupedAdam

    FUNCTIONS += [
        ("architectures", "BiLSTMCRF", bilstm_crf),
        ("architectures", "CharWordEmbed", char_word_embed),
        ("architectures", "RNNEncoder", rnn_encoder),
        ("architectures", "Transformer", transformer),
        ("callbacks", "freeze_layers", freeze_layers),
        ("optimizers", "Adam", GroupedAdam),
    ]

for kind, name, function in FUNCTIONS:
    getattr(registry, kind).register(f"spacy-crf-ner.{name}.v1", func=function)

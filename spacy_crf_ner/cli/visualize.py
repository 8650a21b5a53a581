"""The command `visualize`."""

from pathlib import Path
from typing import Annotated

import typer

from ..atomic import check_file_name
from .gold_corpus import annotate_examples, read_examples
from .options import Component, Dtype, GoldCorpus, GpuId, Model
from .startup import leave_out_torch_if_exported


def visualize(
    model: Model,
    corpus: GoldCorpus,
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="HTML file to write.")],
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
    component: Component = None,
) -> None:
    """Write an HTML page of documents, gold entities beside predicted ones.

    Overlapping entities are lines under the text, the gold ones above the predicted ones.

    \b
    Example:
      spacy-crf-ner visualize training/model-best corpus/test.spacy page.html
    """
    leave_out_torch_if_exported(model, dtype)
    check_file_name(page)
    from ..pipeline.load import load
    from ..pipeline.lookup import find_entities_key
    from ..report.html import comparison_page
    from ..templates import write_page

    nlp = load(model, gpu_id, dtype)
    key = find_entities_key(nlp, component)
    examples = read_examples(nlp, corpus, component)
    annotate_examples(nlp, examples)
    write_page(page, comparison_page(examples, f"{model} on {corpus}", key))
    typer.echo(f"Page: {page}")

"""The command `explain`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..atomic import check_file_name
from .console import print_table, right
from .options import Component, Dtype, GpuId, Model
from .startup import leave_out_torch_if_exported


def explain(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In quotes.")],
    html: Annotated[
        Path | None, typer.Option(help="HTML file to write, with a drawing of the trellis.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Number of labelings to show.")] = 5,
    label: Annotated[
        str | None, typer.Option(help="The label to explain, if entities may overlap.")
    ] = None,
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
    component: Component = None,
) -> None:
    """Show how Viterbi decoding finds the entities of a text.

    \b
    Prints, for each token, the relevant tags, and * beside that of the best path:
      Emission     the score of the tag at this token
      Score        the score of the best legal path to this tag
      Backpointer  the previous tag on that path
      Marginal     the probability of the tag here, over all paths
    and the most probable labelings. It omits tags with a marginal below 0.01,
    unless they are on the path or a backpointer of a shown tag points to them.

    With decode = "max_expected_f" or thresholds, the component can find other entities than
    those of the best path.

    If entities may overlap, each label has tags and a best path of its own: choose one by
    --label. The path is that of the outermost entities of this label. The labelings have the
    entities of all labels.

    \b
    Example:
      spacy-crf-ner explain model "Tim Cook visited Hanoi." --html trellis.html
    """
    leave_out_torch_if_exported(model, dtype)
    from ..data.json_records import check_unicode
    from ..explain.html import trellis_page
    from ..explain.trellis import explain as explanation_of
    from ..pipeline.load import load
    from ..templates import write_page

    check_unicode("text", text)
    if html is not None:
        check_file_name(html)
    explanation = explanation_of(load(model, gpu_id, dtype), text, n, component, label)
    if explanation["tokens"]:
        _print_trellis(explanation)
    else:
        typer.echo("The text has no token, so there is nothing to search.")
    if html is not None:
        write_page(html, trellis_page(explanation, model))
        typer.echo(f"Page: {html}")


def _print_trellis(explanation: dict[str, Any]) -> None:
    """Print the relevant tags of each token, and the best labelings."""
    from ..explain.trellis import entities_in_words, relevant_tags, visible

    tags, relevant = explanation["tags"], relevant_tags(explanation)
    table = Table("Token", "Tag", *right("Emission", "Score"), "Backpointer", *right("Marginal"))
    for t, shown in enumerate(relevant):
        for c in shown:
            score, before = explanation["scores"][t][c], explanation["backpointers"][t][c]
            table.add_row(
                visible(explanation["tokens"][t]) if c == shown[0] else "",
                ("* " if c == explanation["path"][t] else "  ") + tags[c],
                f"{explanation['emissions'][t][c]:.2f}",
                "none" if score is None else f"{score:.2f}",
                "" if before is None else tags[before],
                f"{explanation['marginals'][t][c]:.3f}",
            )
        table.add_section()
    print_table(table)
    left_out = len(tags) - len(set().union(*relevant))
    typer.echo(f"Score of the path, including the end score: {explanation['score']:.2f}")
    typer.echo(f"Tags: {len(tags)}, {left_out} of them not shown, relevant at no token")
    labelings = Table("Probability", "Entities")
    for labeling in explanation["labelings"]:
        labelings.add_row(f"{labeling['probability']:.4f}", entities_in_words(labeling))
    print_table(labelings)

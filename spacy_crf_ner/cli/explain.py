"""The command `explain`."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from ..explain.html import trellis_page
from ..explain.trellis import explain as explanation_of
from ..pipeline.load import load
from ..templates import write_page
from .console import print_trellis
from .options import Precision


def explain(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    text: Annotated[str, typer.Argument(help="Text, in quotes.")],
    html: Annotated[
        Optional[Path], typer.Option(help="HTML file to write, with the trellis as a drawing.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Most probable analyses to show.")] = 5,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, if there are several.")
    ] = None,
) -> None:
    """Show how Viterbi decoding finds the entities of a text.

    \b
    Prints, for each token, the relevant tags, and * beside the tag of the best path:
      Emission     the score of the tag at this token
      Score        of the best legal path that ends in this tag here
      Backpointer  the previous tag on that path
      Marginal     the probability of the tag here, over all paths
    and the most probable analyses. Tags with a marginal below 0.01 are left out if
    they are not on the path and no tag that is shown points back to them.
    """
    explanation = explanation_of(load(model, gpu_id, precision), text, n, component)
    print_trellis(explanation)
    if html is not None:
        write_page(html, trellis_page(explanation))
        typer.echo(f"Page: {html}")

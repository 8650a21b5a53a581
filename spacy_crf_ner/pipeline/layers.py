"""Layers of nested spans: in each, spans do not overlap."""

from collections.abc import Iterable


def assign_layers(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Find the layer of each span (start, end), 0 for the outermost.

    From left to right, longer spans first, each span takes the first layer where it overlaps none.
    That needs the fewest layers. Source: Kleinberg and Tardos (2006), "Algorithm design",
    section 4.1.

    Returns the layers in the order of the spans.
    """
    given = list(spans)
    layers, ends = [0] * len(given), list[int]()
    for i in sorted(range(len(given)), key=lambda i: (given[i][0], -given[i][1])):
        start, end = given[i]
        layers[i] = next((k for k, last in enumerate(ends) if last <= start), len(ends))
        ends[layers[i] : layers[i] + 1] = [end]
    return layers

"""The transformer alone: an upper bound on the speed of recognizers over it."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from system import System, serve
from transformers import AutoModel, AutoTokenizer

PADDED = 1500  # subwords in a batch
WINDOW = 170  # subwords; about the 128 words of the shipped configs, and none of them read twice


class BareTransformer(System):
    def load(self, model: str, autocast: bool) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModel.from_pretrained(model, add_pooling_layer=False).eval()
        if not autocast:
            self.model = self.model.bfloat16()
        self.precision = lambda: (
            torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
        )

    def annotate(self, texts: list[str], batch_size: int) -> Any:
        windows = self.tokenizer(
            texts,
            truncation=True,
            max_length=WINDOW,
            return_overflowing_tokens=True,
            return_token_type_ids=False,
        )["input_ids"]
        windows.sort(key=len)
        with torch.inference_mode(), self.precision():
            return [self.model(**batch).last_hidden_state for batch in self._batches(windows)]

    def _batches(self, windows: list[list[int]]) -> Iterator[Any]:
        first = 0
        while first < len(windows):
            last = first + 1
            while last < len(windows) and len(windows[last]) * (last + 1 - first) <= PADDED:
                last += 1
            yield self.tokenizer.pad({"input_ids": windows[first:last]}, return_tensors="pt")
            first = last


if __name__ == "__main__":
    serve(BareTransformer)

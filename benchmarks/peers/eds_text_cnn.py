"""EDS-NLP's `eds.ner_crf` over `eds.text_cnn` over `eds.transformer`, as in its tutorial."""

from typing import Any

import edsnlp.pipes as eds
from eds_tagger import EdsTagger
from system import serve


class EdsTextCnn(EdsTagger):
    head = 6  # its tutorial has 3e-4 and 5e-5
    clip = 5.0  # its default

    def embedding(self, transformer: Any) -> Any:
        return eds.text_cnn(kernel_sizes=[3], embedding=transformer)


if __name__ == "__main__":
    serve(EdsTextCnn())

"""flair's SequenceTagger with a linear layer alone: no RNN, no CRF, the first piece of each word.

As its documentation fine-tunes a transformer, with one learning rate, but with the dropout of
`flair_tagger`, and without the context of a document: the documents here are sentences.
"""

from flair_tagger import FlairTagger
from system import serve


class FlairLinear(FlairTagger):
    pooling = "first"
    rnn_and_crf = False
    head = 1


if __name__ == "__main__":
    serve(FlairLinear())

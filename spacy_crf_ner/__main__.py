"""Run `spacy-crf-ner` as `python -m spacy_crf_ner`."""

from .cli import main

if __name__ == "__main__":
    main()

"""`python -m spacy_crf_ner` is `spacy-crf-ner`."""

from .cli import main

if __name__ == "__main__":
    main()

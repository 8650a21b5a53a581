"""What `spacy train` uses: optimizers, callbacks, configs, training in several processes."""

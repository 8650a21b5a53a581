"""Train a pipeline on an annotated corpus: from the checks to the calibration."""

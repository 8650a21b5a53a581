"""Explain how Viterbi decoding found the entities of a text."""

from .trellis import explain

__all__ = ["explain"]

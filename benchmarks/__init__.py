"""Benchmarks: `python benchmarks/run.py`. Each file has one question; none imports another one."""

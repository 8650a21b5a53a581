"""The tests for GPUs, without one: numbers are right, devices do not mix, and costs are bounded."""

import pytest

PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--durations=8"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "files, chosen, capability",
    [
        (["tests/test_gpu.py", "tests/gpu/costs.py"], "not processes", "9.0"),  # as a H100
        (["tests/test_gpu.py"], "processes", "9.0"),
        (["tests/test_gpu.py"], "precision or dtype", "7.5"),  # as a T4, which has no bfloat16
    ],
)
def test_gpu_tests_pass_in_standin(run, files, chosen, capability):
    output = run(*PYTEST, *files, "-k", chosen, capability=capability)
    assert " passed" in output and " skipped" not in output

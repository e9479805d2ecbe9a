"""PyTorch's operator database: the results of the last sweep hold, and stay above 90 %."""

from __future__ import annotations

import pytest

from op_db_entry import BITWISE, MODES, entries, judge
from op_db_results import counts, read_results, recorded_torch_version, torch_version

SAMPLE_SIZE = 150
LEAST_SHARE = 0.9


def sample() -> list[str]:
    """A fixed sample of the entries, evenly spaced over their sorted names."""
    names = list(entries())
    return [names[index * len(names) // SAMPLE_SIZE] for index in range(SAMPLE_SIZE)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sample())
def test_bitwise_entries_are_still_bitwise(name: str, mode: str) -> None:
    if torch_version() != recorded_torch_version():
        pytest.skip(f"the results are those of torch {recorded_torch_version()}")
    recorded = read_results()[name][mode]
    if recorded != BITWISE:
        pytest.skip(f"not bitwise in the last sweep: {recorded}")
    assert judge(name, mode) == BITWISE


@pytest.mark.parametrize("mode", MODES)
def test_share_of_bitwise_entries(mode: str) -> None:
    good, judged = counts(read_results(), mode)
    assert good >= LEAST_SHARE * judged, f"{good} of {judged} entries are bitwise"


def test_the_results_cover_the_database() -> None:
    if torch_version() == recorded_torch_version():
        assert read_results().keys() == entries().keys()

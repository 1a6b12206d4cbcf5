"""What was learned by fuzzing holds without a fuzzer: every input that is kept, within the memory it may take."""

import logging
from collections.abc import Iterator

import pytest

from fuzz import corpus
from fuzz.all_targets import TARGETS
from fuzz.target import KIB, Target, TooMuchMemoryError

CORPUS_SIZE_MAX = 300 * KIB


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """What the connector has to say of hostile peers is much, and not the question."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_that_is_kept_ends_in_a_result_or_the_documented_error(name: str) -> None:
    target = TARGETS[name]
    inputs = [*target.seeds, *corpus.kept(name), *corpus.found(name)]
    assert corpus.kept(name), f"./run fuzz {name} --keep makes a corpus"
    for data in inputs:
        # What is loaded and cached the first time does not count.
        target.run(data)
        target.weigh(data)


def test_an_input_that_takes_too_much_is_seen() -> None:
    greedy = Target("greedy", lambda _data: bytes(10 * KIB), [b""], fixed_memory=KIB)
    with pytest.raises(TooMuchMemoryError):
        greedy.weigh(b"x")


def test_the_corpus_is_small() -> None:
    sizes = [len(data) for name in TARGETS for data in [*corpus.kept(name), *corpus.found(name)]]
    assert 0 < sum(sizes) <= CORPUS_SIZE_MAX

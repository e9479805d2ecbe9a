"""Whole models do under `fg.jit` what they do in eager, to the bit: in inference, and over several training steps."""

from __future__ import annotations

import pytest

from harness import check_inference, check_training, check_turns
from models.case import ModelCase
from models.huggingface import HUGGING_FACE
from models.plain import PLAIN

each_model = pytest.mark.parametrize("case", [*PLAIN, *HUGGING_FACE], ids=lambda case: case.name)


@each_model
def test_inference(case: ModelCase) -> None:
    """Two calls of one size with other data, one of another size, and back."""
    check_inference(case.make, case.inference_call, calls=4)


@each_model
def test_training(case: ModelCase) -> None:
    """Two steps of one size, and one of another."""
    check_training(case.make, case.training_call, steps=3, loss=case.loss)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_training_and_inference_by_turns(case: ModelCase) -> None:
    """Running statistics that training left are those that eval mode uses, and dropout goes off and on again."""
    check_turns(case.make, case.training_call, case.inference_call, loss=case.loss)

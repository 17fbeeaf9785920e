"""Names that MLflow would refuse, and with them the batch that they are in."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # mlflow takes seconds to import


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("downstream/acc,none", "downstream/acc_none"),
        ("downstream/mmlu (5-shot)", "downstream/mmlu _5-shot_"),
        ("downstream/hellaswag@10", "downstream/hellaswag_10"),
        ("downstream//x/../y", "downstream/x/_/y"),
        ("train/loss", "train/loss"),
        ("..", "_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_a_name_is_sent_as_mlflow_takes_it(name: str, sent: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_metric_name

    from froude.tracking.mlflow_tracker import accepted

    assert accepted(name) == sent
    _validate_metric_name(sent)
    if name != sent and len(name) < 250:
        with pytest.raises(MlflowException):
            _validate_metric_name(name)

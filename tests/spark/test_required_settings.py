"""The settings without which checkpoints, or the values in files, are not exact."""

from __future__ import annotations

import pytest

from weir.errors import ConfigurationError
from weir.spark.session.settings import REQUIRED
from weir.spark.session.start import plan_session


@pytest.mark.parametrize("key", REQUIRED)
def test_another_value_of_a_required_setting_is_refused_by_its_key(key: str) -> None:
    """Before a JVM starts."""
    with pytest.raises(ConfigurationError, match=f"^{key} is set to 'other'"):
        plan_session(
            name="orders",
            master="local[1]",
            conf={key: "other"},
            parallelism=1,
            fast_working_directory=True,
            log_file=None,
            java_options="",
        )

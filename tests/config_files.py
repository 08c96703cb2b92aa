"""What tests of config files share."""

from pathlib import Path

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config.reading import load

CONFIGS = Path(__file__).parent.parent / "configs"
YAML = [*sorted(CONFIGS.glob("*.yaml")), *sorted(CONFIGS.glob("experiments/*/*.yaml"))]
"""Configs of experiments, which users start from."""
SYNTHETIC = "data: {kind: synthetic}\n"


def error_of(path, overrides=()) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)

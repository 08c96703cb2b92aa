"""What tests of config files share."""

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config.reading import load

SYNTHETIC = "data: {kind: synthetic}\n"


def error_of(path, overrides=()) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)

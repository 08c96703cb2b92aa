"""The schema: closed, frozen, and with rules across keys."""

import pydantic
import pytest

from embark_jax._base.config import Config, sections
from embark_jax.config import (
    ExperimentConfig,
    TrainConfig,
)


def all_sections(cls=ExperimentConfig) -> list[type[Config]]:
    inner = [s for f in cls.model_fields.values() for s in sections(f.annotation)]
    return [cls, *(found for s in inner for found in all_sections(s))]


@pytest.mark.parametrize("cls", all_sections(), ids=lambda cls: cls.__name__)
def test_none_is_the_default_wherever_it_is_allowed(cls):
    for name, field in cls.model_fields.items():
        allows_none = type(None) in getattr(field.annotation, "__args__", ())
        assert not allows_none or field.default is None, name


def test_configs_cannot_be_changed():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        TrainConfig().steps = 3

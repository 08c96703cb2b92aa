"""The tables and features of a dataset, with the changes of a config."""

import pytest

import embark_jax as ej
from embark_jax._base.config import ConfigError
from embark_jax.config import ExperimentConfig
from embark_jax.data.source import Description
from embark_jax.run.dataset import merged_model

DATA = Description({"item": 9}, (ej.FeatureSpec("item", "", 5, "sum", True),), 2)


def config(**changes) -> ExperimentConfig:
    embedding = {"dim": 4, "features": {"item": changes}}
    return ExperimentConfig.model_validate(
        {"data": {"kind": "synthetic"}, "embedding": embedding}
    )


def test_what_a_config_sets_of_a_feature_replaces_what_the_data_say():
    _, features = merged_model(config(pooling="mean", weighted=True), DATA)
    assert features == (ej.FeatureSpec("item", "item", 5, "mean", True),)


@pytest.mark.parametrize(
    ("key", "value", "own"), [("weighted", False, "True"), ("table", "user", "'item'")]
)
def test_what_the_data_fix_is_not_changed(key, value, own):
    message = f"embedding.features.item.{key}: is {value!r}, the dataset says {own}"
    with pytest.raises(ConfigError, match=message):
        merged_model(config(**{key: value}), DATA)

"""The schema: closed, frozen, and with rules across keys."""

from collections.abc import Mapping

import pydantic
import pytest

from embark_jax._base.config import Config, kind_of, nearest, sections
from embark_jax.config import (
    EmbeddingConfig,
    ExperimentConfig,
    MeshConfig,
    MovieLens100KConfig,
    SyntheticConfig,
    TableConfig,
    TrainConfig,
)


def all_sections(cls=ExperimentConfig) -> list[type[Config]]:
    inner = [s for f in cls.model_fields.values() for s in sections(f.annotation)]
    return [cls, *(found for s in inner for found in all_sections(s))]


def test_sections_of_each_form_of_field():
    assert sections(int | None) == []
    assert sections(MeshConfig) == [MeshConfig]
    assert sections(Mapping[str, TableConfig]) == [TableConfig]
    data = ExperimentConfig.model_fields["data"].annotation
    kinds = {kind_of(cls): cls for cls in sections(data)}
    assert kinds["synthetic"] == SyntheticConfig
    assert kinds["movielens_100k"] == MovieLens100KConfig


@pytest.mark.parametrize("cls", all_sections(), ids=lambda cls: cls.__name__)
def test_none_is_the_default_wherever_it_is_allowed(cls):
    for name, field in cls.model_fields.items():
        allows_none = type(None) in getattr(field.annotation, "__args__", ())
        assert not allows_none or field.default is None, name


def test_the_batch_is_a_multiple_of_the_devices():
    with pytest.raises(
        pydantic.ValidationError,
        match=r"train.batch_size is 100, must be a multiple of the 8 devices "
        r"\(mesh.nodes 2 × mesh.gpus_per_node 4\)",
    ):
        ExperimentConfig(
            data=SyntheticConfig(),
            mesh=MeshConfig(nodes=2, gpus_per_node=4),
            train=TrainConfig(batch_size=100),
        )


def test_configs_cannot_be_changed():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        TrainConfig().steps = 3


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (TableConfig, {"rows": 0}),
        (TableConfig, {"devices": [0, -1]}),
        (EmbeddingConfig, {"capacity_slack": 0}),
        (EmbeddingConfig, {"capacity_slack": float("inf")}),
        (TrainConfig, {"learning_rate": 0.1}),
        (TrainConfig, {"dense": "tensor", "dense_wire": "bfloat16"}),
    ],
)
def test_bad_values_are_refused(section, values):
    with pytest.raises(pydantic.ValidationError):
        section(**values)


def test_nearest():
    assert nearest("bach_size", TrainConfig.model_fields) == "did you mean batch_size?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "known: none"

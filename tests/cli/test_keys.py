"""``embark keys``: what the schema says of its keys."""

import json

import jsonschema

from embark_jax._base import yaml_text
from embark_jax.config.embedding import WireConfig
from tests.config_files import CONFIGS
from tests.runs import assert_refused, done, embark


def test_keys_are_explained_by_their_docstrings():
    shown = done("keys", "embedding.wire").out
    assert shown.count("default float32") == 2
    for name, field in WireConfig.model_fields.items():
        assert f"embedding.wire.{name}  " in shown
        assert field.description in shown
    everything = done("keys").out
    for key in ("data.zipf_exponent", "embedding.tables.NAME.tier", "train.steps"):
        assert f"\n{key}  default" in everything
    assert "(of kind deepfm)" in everything
    for key, kinds, default in (
        ("embedding.optimizer", ("sgd", "adagrad"), "rowwise_adagrad"),
        ("dense_optimizer", ("sgd", "adam"), "adagrad"),
        ("embedding.optimizer.schedule", ("cosine",), "constant"),
        ("model", ("dlrm",), "dlrm_dcnv2"),
        ("data", ("synthetic",), None),
    ):
        lines = everything.splitlines()
        assert {f"{key}.kind  {kind}" for kind in kinds} <= {*lines}
        defaults = [line for line in lines if line.startswith(f"{key}.kind")]
        defaults = [line for line in defaults if line.endswith(", the default")]
        assert defaults == [f"{key}.kind  {default}, the default"] * bool(default)


def test_an_unknown_key_is_told_the_nearest():
    assert_refused(embark("keys", "embeding.wire"), "did you mean embedding.wire?")


def test_the_schema_takes_the_shipped_configs_and_knows_their_keys():
    """Oracle: jsonschema, as editors have it, on the files as YAML gives them."""
    schema = json.loads(done("keys", "--schema").out)
    validator = jsonschema.Draft202012Validator(schema)
    paths = [*CONFIGS.glob("*.yaml"), *CONFIGS.glob("experiments/*/*.yaml")]
    assert len(paths) > 20
    for path in paths:
        data = yaml_text.parse(path.read_text())
        assert validator.is_valid(data), path
        data["model"] = {**data.get("model", {}), "crss_layers": 3}
        assert not validator.is_valid(data), path
    own = {"data": {"kind": "m:Data", "x": 1}, "model": {"kind": "m:Net", "width": 3}}
    assert validator.is_valid(own)

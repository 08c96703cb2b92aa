"""``embark keys``: what the schema says of its keys."""

from embark_jax.config.embedding import WireConfig
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


def test_an_unknown_key_is_told_the_nearest():
    assert_refused(embark("keys", "embeding.wire"), "did you mean embedding.wire?")

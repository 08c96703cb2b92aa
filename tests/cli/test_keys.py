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

"""Batch normalization and dropout against PyTorch's, on the same numbers.

PyTorch is no dependency: without it these tests are skipped.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from embark_jax.models.layers import MLP

torch = pytest.importorskip("torch")

BATCH, WIDTHS, STEPS, RATE = 32, (6, 5, 4), 3, 0.1


def test_batch_norm_trains_as_pytorch_s():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, BATCH, WIDTHS[0])).astype(np.float32)
    mlp = MLP(
        WIDTHS[0],
        WIDTHS[1:],
        last_relu=True,
        batch_norm=True,
        compute_dtype=jnp.float32,
        rngs=nnx.Rngs(0),
    )
    parts = []
    for layer in mlp.layers:
        linear = torch.nn.Linear(*layer.w.shape)
        linear.weight.data = torch.tensor(np.array(layer.w[...].T))
        linear.bias.data = torch.tensor(np.array(layer.b[...]))
        parts += [linear, torch.nn.BatchNorm1d(layer.w.shape[1]), torch.nn.ReLU()]
    theirs = torch.nn.Sequential(*parts)
    optimizer = torch.optim.SGD(theirs.parameters(), RATE)

    @nnx.grad(has_aux=True)
    def gradients(mlp, x):
        y = mlp(x)
        return jnp.sum(y**2) / BATCH, y

    for step in range(STEPS):
        found = theirs(torch.tensor(x[step]))
        optimizer.zero_grad()
        ((found**2).sum() / BATCH).backward()
        optimizer.step()
        gradient, y = gradients(mlp, jnp.asarray(x[step]))
        np.testing.assert_allclose(y, found.detach(), rtol=1e-4, atol=1e-5)
        params = nnx.state(mlp, nnx.Param)
        nnx.update(mlp, jax.tree.map(lambda p, g: p - RATE * g, params, gradient))

    norms = [part for part in parts if isinstance(part, torch.nn.BatchNorm1d)]
    kept = 0.9**STEPS
    for mine, norm in zip(mlp.norms, norms, strict=True):
        np.testing.assert_allclose(
            mine.mean[...], norm.running_mean, rtol=1e-4, atol=1e-6
        )
        # PyTorch's running variances are those of samples: n / (n - 1) of Flax's.
        biased = (norm.running_var - kept) * (BATCH - 1) / BATCH + kept
        np.testing.assert_allclose(mine.var[...], biased, rtol=1e-4)
        np.testing.assert_allclose(
            mine.scale[...], norm.weight.detach(), rtol=1e-4, atol=1e-6
        )


def test_dropout_keeps_and_scales_as_pytorch_s():
    share, rows, width = 0.3, 1000, 20
    mlp = MLP(
        6,
        (width,),
        last_relu=True,
        dropout=share,
        compute_dtype=jnp.float32,
        rngs=nnx.Rngs(0),
    )
    x = jax.random.normal(jax.random.key(1), (rows, 6))
    trained = np.asarray(mlp(x))
    mlp.eval()
    whole = np.asarray(mlp(x))
    there = whole > 0
    theirs = torch.nn.functional.dropout(torch.tensor(whole), share).numpy()
    # Both give 0 or whole / (1 - share), which torch's own result says.
    scale = np.unique(np.round(theirs[there] / whole[there], 5))
    found = np.unique(np.round(trained[there] / whole[there], 5))
    np.testing.assert_allclose(found, scale, atol=2e-5)
    deviation = (share * (1 - share) / there.sum()) ** 0.5
    for values in (trained, theirs):
        assert abs((values[there] == 0).mean() - share) < 5 * deviation
    assert not trained[~there].any()

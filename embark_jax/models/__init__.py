"""Recommendation models in Flax NNX: dense features and pooled embeddings to logits."""

from embark_jax.models.build import build as build
from embark_jax.models.dlrm import DLRM as DLRM
from embark_jax.models.dlrm_dcnv2 import DLRMDCNv2 as DLRMDCNv2

"""Recommendation models in Flax NNX, from dense features and embeddings to logits."""

from embark_jax.models.autoint import AutoInt as AutoInt
from embark_jax.models.build import build as build
from embark_jax.models.dcn import DCN as DCN
from embark_jax.models.deepfm import DeepFM as DeepFM
from embark_jax.models.din import DIN as DIN
from embark_jax.models.dlrm import DLRM as DLRM
from embark_jax.models.dlrm_dcnv2 import DLRMDCNv2 as DLRMDCNv2
from embark_jax.models.finalmlp import FinalMLP as FinalMLP
from embark_jax.models.footprint import footprint as footprint
from embark_jax.models.function import FunctionModel as FunctionModel
from embark_jax.models.function import ModelWithLoss as ModelWithLoss
from embark_jax.models.mmoe import MMoE as MMoE
from embark_jax.models.tbsm import TBSM as TBSM
from embark_jax.models.two_tower import TwoTower as TwoTower
from embark_jax.models.wide_deep import WideDeep as WideDeep

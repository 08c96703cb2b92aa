"""Row stores hold all rows of cached tables, in host memory or on disk."""

from embark_jax.stores.row_store import RowStore as RowStore
from embark_jax.stores.row_store import StoreError as StoreError

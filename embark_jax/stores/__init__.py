"""Row stores: where rows of cached tables lie below device memory."""

from embark_jax.stores.row_store import RowStore as RowStore
from embark_jax.stores.row_store import StoreError as StoreError

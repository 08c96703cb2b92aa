"""The public names, which ``embark_kernels`` gives when one is first asked for."""

from embark_kernels._implementation import Implementation as Implementation
from embark_kernels._implementation import availability as availability
from embark_kernels._implementation import choose as choose
from embark_kernels._implementation import why_plain_xla as why_plain_xla
from embark_kernels.attention import Heads as Heads
from embark_kernels.attention import attend as attend
from embark_kernels.attention import attend_packed as attend_packed
from embark_kernels.attention import why_plain_attention as why_plain_attention
from embark_kernels.buckets import Buckets as Buckets
from embark_kernels.buckets import UniqueBuckets as UniqueBuckets
from embark_kernels.buckets import bucket_by_owner as bucket_by_owner
from embark_kernels.buckets import bucket_sorted as bucket_sorted
from embark_kernels.buckets import unique_by_owner as unique_by_owner
from embark_kernels.grouping import RowGroups as RowGroups
from embark_kernels.grouping import SortedIds as SortedIds
from embark_kernels.grouping import begins_segment as begins_segment
from embark_kernels.grouping import group_rows as group_rows
from embark_kernels.grouping import group_targets as group_targets
from embark_kernels.grouping import number_segments as number_segments
from embark_kernels.grouping import sort_positions as sort_positions
from embark_kernels.lookup import bag_offsets as bag_offsets
from embark_kernels.lookup import pooled_lookup as pooled_lookup
from embark_kernels.lookup import sum_bags as sum_bags
from embark_kernels.optimizers import *  # noqa: F403
from embark_kernels.update import changes_are_finite as changes_are_finite
from embark_kernels.update import init_states as init_states
from embark_kernels.update import sum_and_update as sum_and_update
from embark_kernels.update import sum_groups as sum_groups
from embark_kernels.update import update_rows as update_rows

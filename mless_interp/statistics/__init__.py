"""Statistics for effects measured on the same problems: who replicates is the problem, never a head, token or draw.

Arrays are `[problem, *cells]`: the first axis is the unit of replication and the other axes are free, for example
`[problem, layer, head]`. NaN means undefined; it is left out, counted in `n`, and never read as 0. Every random number
comes from `derive_generator(seed, ...)`, so the same seed gives the same result in every process.

- testing: `max_t_sign_flip` (family-wise error over all heads at once; `corrected_p` is its p-values alone), `sign_flip`
  (one cell at a time), `max_t_two_groups` (two groups of problems), `holm`, `benjamini_hochberg`, `tost` (absence of an
  effect)
- intervals: `bootstrap_interval`, `mean_interval`, `ratio_interval`, `paired_bootstrap_difference`
- ranking: `rank_intervals`, `split_half_spearman`, `jaccard_at_k`
- accuracy: `mcnemar`, `wilson`, `pass_at_k`
- planning and shape: `cohen_dz`, `sample_size`, `average_within_problem`, `defined_mean`, `derive_generator`
"""

from .arguments import Cells, Effects, derive_generator
from .bootstrap import (
    CONFIDENCE,
    Interval,
    bootstrap_interval,
    mean_interval,
    one_problem,
    paired_bootstrap_difference,
    ratio_interval,
)
from .effects import Equivalence, ProblemMeans, average_within_problem, cohen_dz, sample_size, tost
from .groups import TwoGroups, max_t_two_groups
from .means import defined_mean
from .multiplicity import benjamini_hochberg, holm
from .permutation import SignFlipTest, corrected_p, max_t_sign_flip, sign_flip
from .proportions import mcnemar, pass_at_k, wilson
from .ranking import RankIntervals, SplitHalf, jaccard_at_k, rank_intervals, split_half_spearman

__all__ = [
    "CONFIDENCE",
    "Cells",
    "Effects",
    "Equivalence",
    "Interval",
    "ProblemMeans",
    "RankIntervals",
    "SignFlipTest",
    "SplitHalf",
    "TwoGroups",
    "average_within_problem",
    "benjamini_hochberg",
    "bootstrap_interval",
    "cohen_dz",
    "corrected_p",
    "defined_mean",
    "derive_generator",
    "holm",
    "jaccard_at_k",
    "max_t_sign_flip",
    "max_t_two_groups",
    "mcnemar",
    "mean_interval",
    "one_problem",
    "paired_bootstrap_difference",
    "pass_at_k",
    "rank_intervals",
    "ratio_interval",
    "sample_size",
    "sign_flip",
    "split_half_spearman",
    "tost",
    "wilson",
]

"""Statistics for effects measured on the same problems: who replicates is the problem, never a head, token or draw.

Arrays are `[problem, *cells]`: the first axis is the unit of replication and the other axes are free, for example `[problem,
layer, head]`. NaN means undefined; it is left out, counted in `n`, and never read as 0. Every random number comes from
`derive_generator(seed, ...)`, so the same seed gives the same result in every process.

- claims about most problems, exact for any distribution: `prevalence_test`, `within_test`, `sign_test`; how many problems
  they take: `fewest_problems`, `detectable_prevalence`
- variants of one problem as one value: `by_group`; medians and who carries a mean: `median_interval`, `concentration`
- the share of an effect that a part of it is, with exact limits: `share_of_total`
- means of what is defined: `defined_mean`; random numbers: `derive_generator`
- intervals of means: `mean_interval` (t below 20 problems), `bootstrap_interval`
- labels read from the right problem rather than from its partner: `swap_partners`, `swap_margins`, `forward_folds`
- many tests at once: `holm`, `benjamini_hochberg`
- accuracy: `mcnemar`, `paired_difference`, `wilson`, `pass_at_k`
"""

from .arguments import Cells, Effects, defined_mean, derive_generator
from .bootstrap import CONFIDENCE, FEW_PROBLEMS, Interval, bootstrap_interval, mean_interval, one_problem
from .medians import Concentration, by_group, concentration, median_interval, sign_test
from .multiplicity import benjamini_hochberg, holm
from .prevalence import (
    SENSES,
    Prevalence,
    detectable_prevalence,
    exact_limits,
    fewest_problems,
    prevalence_test,
    within_test,
)
from .proportions import mcnemar, paired_difference, pass_at_k, wilson
from .shares import share_of_total
from .swaps import forward_folds, swap_margins, swap_partners

__all__ = [
    "CONFIDENCE",
    "FEW_PROBLEMS",
    "SENSES",
    "Cells",
    "Concentration",
    "Effects",
    "Interval",
    "Prevalence",
    "benjamini_hochberg",
    "bootstrap_interval",
    "by_group",
    "concentration",
    "defined_mean",
    "derive_generator",
    "detectable_prevalence",
    "exact_limits",
    "fewest_problems",
    "forward_folds",
    "holm",
    "mcnemar",
    "mean_interval",
    "median_interval",
    "one_problem",
    "paired_difference",
    "pass_at_k",
    "prevalence_test",
    "share_of_total",
    "sign_test",
    "swap_margins",
    "swap_partners",
    "wilson",
    "within_test",
]

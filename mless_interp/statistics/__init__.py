"""Statistics for effects measured on the same problems: the problem is the unit of replication, never a head, token or draw.

Arrays are `[problem, *cells]`: the other axes are free, for example `[problem, layer, head]`. NaN means undefined; it is left
out, counted in `n`, and never read as 0. Every random number comes from `derive_generator(seed, ...)`, so the same seed gives
the same result in every process.
"""

from .intervals import (
    CONFIDENCE,
    FEW_PROBLEMS,
    Cells,
    Effects,
    Interval,
    bootstrap_interval,
    defined_mean,
    derive_generator,
    mean_interval,
)
from .label_swaps import forward_folds, swap_margins, swap_partners
from .prevalence import (
    SENSES,
    Concentration,
    Prevalence,
    benjamini_hochberg,
    by_group,
    concentration,
    detectable_prevalence,
    exact_limits,
    fewest_problems,
    holm,
    median_interval,
    prevalence_test,
    share_of_total,
    sign_test,
)
from .proportions import mcnemar, paired_difference, pass_at_k, wilson

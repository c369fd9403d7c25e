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
    one_problem,
)
from .medians import Concentration, by_group, concentration, median_interval, share_of_total, sign_test
from .prevalence import (
    SENSES,
    Prevalence,
    benjamini_hochberg,
    detectable_prevalence,
    exact_limits,
    fewest_problems,
    holm,
    prevalence_test,
    within_test,
)
from .proportions import mcnemar, paired_difference, pass_at_k, wilson
from .swaps import forward_folds, swap_margins, swap_partners

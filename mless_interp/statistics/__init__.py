"""Statistics for effects measured on the same problems: who replicates is the problem, never a head, token or draw.

Arrays are `[problem, *cells]`: the first axis is the unit of replication and the other axes are free, for example
`[problem, layer, head]`. NaN means undefined; it is left out, counted in `n`, and never read as 0. Every random number
comes from `derive_generator(seed, ...)`, so the same seed gives the same result in every process.

- claims about most problems, exact for any distribution: `prevalence_test`, `within_test`, `sign_test`; how many problems
  they take: `fewest_problems`, `detectable_prevalence`
- medians and who carries a mean: `median_interval`, `concentration`
- planning and shape: `cohen_dz`, `sample_size`, `average_within_problem`, `defined_mean`, `derive_generator`
- intervals of means: `mean_interval`, `share_interval` (t below 20 problems), `bootstrap_interval`, `ratio_interval`
- tests of means, for symmetric data: `max_t_sign_flip`, `corrected_p` (its p-values alone), `sign_flip`; of two groups:
  `max_t_two_groups`
- many tests at once: `holm`, `benjamini_hochberg`; absence of an effect on average: `tost`
- ranking: `rank_intervals`, `rank_enrichment`, `split_half_spearman`, `jaccard_at_k`
- accuracy: `mcnemar`, `paired_difference`, `wilson`, `pass_at_k`
"""

from .arguments import Cells, Effects, derive_generator
from .bootstrap import (
    CONFIDENCE,
    FEW_PROBLEMS,
    Interval,
    bootstrap_interval,
    mean_interval,
    one_problem,
    paired_bootstrap_difference,
    ratio_interval,
    share_interval,
)
from .effects import Equivalence, ProblemMeans, average_within_problem, cohen_dz, sample_size, tost
from .groups import TwoGroups, max_t_two_groups
from .means import defined_mean
from .medians import Concentration, concentration, median_interval, sign_test
from .multiplicity import benjamini_hochberg, holm
from .permutation import SignFlipTest, corrected_p, max_t_sign_flip, sign_flip
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
from .ranking import (
    RankEnrichment,
    RankIntervals,
    SplitHalf,
    jaccard_at_k,
    rank_enrichment,
    rank_intervals,
    split_half_spearman,
)

__all__ = [
    "CONFIDENCE",
    "FEW_PROBLEMS",
    "SENSES",
    "Cells",
    "Concentration",
    "Effects",
    "Equivalence",
    "Interval",
    "Prevalence",
    "ProblemMeans",
    "RankEnrichment",
    "RankIntervals",
    "SignFlipTest",
    "SplitHalf",
    "TwoGroups",
    "average_within_problem",
    "benjamini_hochberg",
    "bootstrap_interval",
    "cohen_dz",
    "concentration",
    "corrected_p",
    "defined_mean",
    "derive_generator",
    "detectable_prevalence",
    "exact_limits",
    "fewest_problems",
    "holm",
    "jaccard_at_k",
    "max_t_sign_flip",
    "max_t_two_groups",
    "mcnemar",
    "mean_interval",
    "median_interval",
    "one_problem",
    "paired_bootstrap_difference",
    "paired_difference",
    "pass_at_k",
    "prevalence_test",
    "rank_enrichment",
    "rank_intervals",
    "ratio_interval",
    "sample_size",
    "share_interval",
    "sign_flip",
    "sign_test",
    "split_half_spearman",
    "tost",
    "wilson",
    "within_test",
]

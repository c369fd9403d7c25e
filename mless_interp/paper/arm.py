"""ARM's published settings as a table, with the places where the paper's Table 9 and its code disagree.

The data stand in `mechanism/arm_published.py`, because `ARM.from_paper` reads them and imports go one way.
"""

import pandas as pd

from ..mechanism.arm_published import PUBLISHED_ARM, PublishedArm, published_arm

__all__ = ["PUBLISHED_ARM", "PublishedArm", "arm_settings", "published_arm"]


def arm_settings() -> pd.DataFrame:
    """One row per model and benchmark: c (Gemma: the share itself) and p1 (percentile) of table and code.

    `disagrees` marks rows where they differ; `code_known` those whose code values are on record (elsewhere no difference
    is recorded and the code's columns repeat the table). NaN: not known.
    """
    nothing = (None, None)
    rows = []
    for found in PUBLISHED_ARM:
        (c, p1), (c_code, p1_code) = found.table or nothing, found.code or nothing
        rows.append(
            {
                "model": found.model,
                "benchmark": found.benchmark,
                "c": c,
                "p1": p1,
                "c_code": c_code,
                "p1_code": p1_code,
                "p_min_code": found.code_options.get("p_min"),
                "fraction": found.code_options.get("fraction", "share"),
                "disagrees": found.disagrees,
                "code_known": found.code_known,
                "note": found.note,
            }
        )
    numbers = ["c", "p1", "c_code", "p1_code", "p_min_code"]
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))

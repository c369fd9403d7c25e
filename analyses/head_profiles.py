"""What do attention heads do with inserted tokens?

For any model, heads and insertions: how much attention every token receives with and without the insertion, how it
collapses inside the span and recovers after it, as tables with intervals, curves, and all that is needed to repeat it.

The same as `mless-interp profiles`. Its options, what is computed and what is shown of it:
`mless_interp/app/head_profiles.py`.
"""

import mless_interp as mi

app = mi.app.head_profiles.app

if __name__ == "__main__":
    app()

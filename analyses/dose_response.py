"""How do attention to the inserted tokens, and the answer, depend on how many of them there are?

Inserts 1, 2, 4 ... tokens; measures each head's log odds of reading them, once at held positions (where the slope in log N
is exactly 1 in the first layer) and once as inserted, and what each number does to the outcome.

The same as `mless-interp dose`. Options, what is computed and what is shown of it: `mless_interp/app/dose_response.py`.
"""

import mless_interp as mi

app = mi.app.dose_response.app

if __name__ == "__main__":
    app()

"""What do several insertions do, side by side, as one file asks for them?

A study names a model, problems, insertions with their places, contrasts, outcomes and seeds; the included ones ask what
published work asks. Every insertion gets a row: its effects, the attention to it, the heads that carry it, the answers.

    python analyses/study.py paper --out results/paper --report

The same as `mless-interp study`. Options, what is computed and what is shown of it: `mless_interp/app/study.py`.
"""

import mless_interp as mi

app = mi.app.study.app

if __name__ == "__main__":
    app()

"""Does an insertion change the answers?

The same problems answered without anything, with meaningless tokens, with a repeated word, with random words, with the
paper's ARM, and with heads that cannot see the insertion; graded strictly (and, beside it, as the paper does), compared in
pairs. Answers are kept as they finish: a run that is stopped goes on from where it was.

The same as `mless-interp accuracy`. Options, what is computed and what is shown of it: `mless_interp/app/accuracy.py`.
"""

import mless_interp as mi

app = mi.app.accuracy.app

if __name__ == "__main__":
    app()

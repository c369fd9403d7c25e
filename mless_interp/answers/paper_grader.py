r"""The grader of the paper's released code, kept to reproduce its numbers. Unsound: report it beside `grade_strict` only."""

from ..core.arguments import checked


@checked
def grade_paper(completion: str, gold: str) -> bool:
    r"""UNSOUND: the paper's own rule, which calls an answer right when it is a *substring* of the gold one.

    The last `\boxed{...}` (else `\fbox{...}`) and the gold answer are stripped by MATH's rules, then `str1 in str2`.
    Constant answers score on MATH-500, of 500 (strictly graded in brackets): an empty box 500 (0), "1" 200 (12), "2" 165
    (18), "3" 110 (19), "0" 103 (7). It also calls right answers wrong: x + 1 is not 1 + x. Only for comparing with the
    paper's numbers, beside `grade_strict`.

    Source: methods §11; the paper's released code, and the rules of hendrycks/math | differs in: only the completion
    is graded (the released code grades prompt and completion, so that with single braces a completion without a box is
    right: the prompt's own empty box); text on which the released rules raise an error is compared as it is.

    >>> grade_paper(r"\boxed{1}", r"\frac{14}{3}"), grade_paper(r"\boxed{}", "7"), grade_paper("7", "7")
    (True, True, False)
    """
    answer = _last_box(completion)
    if answer is None:
        return False
    try:
        return stripped(answer) in stripped(gold)
    except (IndexError, ValueError):
        return answer == gold


def _last_box(text: str) -> str | None:
    """MATH's rule: from the last `\\boxed`, braces are counted up to the first balance, escaped ones too."""
    name = "boxed" if "\\boxed" in text else "fbox"
    start = text.rfind(f"\\{name}")
    if start < 0:
        return None
    depth = 0
    for at in range(start, len(text)):
        if text[at] not in "{}":
            continue
        depth += 1 if text[at] == "{" else -1
        if depth == 0:
            found = text[start : at + 1]
            opening = f"\\{name}{{"
            return found[len(opening) : -1] if found.startswith(opening) else None
    return None


def stripped(answer: str) -> str:
    """Return an answer by the rules of MATH's `_strip_string`, in their order; IndexError or ValueError where they have one."""
    s = answer
    for old, new in (
        ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", ""),
        ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
    ):  # fmt: skip
        s = s.replace(old, new)
    if "\\text{ " in s:
        s, _ = s.split("\\text{ ")
    for old, new in (("\\%", ""), ("%", ""), (" .", " 0."), ("{.", "{0.")):
        s = s.replace(old, new)
    if not s:
        return s
    s = "0" + s if s[0] == "." else s
    sides = s.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        s = sides[1]
    head, *roots = s.split("\\sqrt")
    s = head + "".join("\\sqrt" + (root if root[0] == "{" else f"{{{root[0]}}}{root[1:]}") for root in roots)
    s = _fractions(s.replace(" ", ""))
    return _slash("\\frac{1}{2}" if s == "0.5" else s)


def _fractions(s: str) -> str:
    head, *rest = s.split("\\frac")
    found = head
    for part in rest:
        if part[0] == "{":
            found += "\\frac" + part
        elif len(part) < 2:
            return s
        else:
            below = part[1] if part[1] == "{" else f"{{{part[1]}}}"
            found += f"\\frac{{{part[0]}}}{below}{part[2:]}"
    return found


def _slash(s: str) -> str:
    parts = s.split("/")
    try:
        a, b = (int(part) for part in parts)
    except ValueError:
        return s
    return f"\\frac{{{a}}}{{{b}}}" if s == f"{a}/{b}" else s

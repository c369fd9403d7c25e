"""Problems, prompts, insertions and pairs of prompts whose alignment is proved."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["conditions", "insertions", "own_ids", "pairs", "problems", "prompt", "texts", "token_classes"],
    {
        "insertions": ["Insertion"],
        "own_ids": ["pairs_from_ids"],
        "pairs": ["PromptPair", "insert_tokens", "make_pairs"],
        "problems": ["Problem", "load_problems"],
        "prompt": ["Prompt", "Template", "build_prompt"],
        "texts": ["problems_from_texts", "with_examples"],
    },
)

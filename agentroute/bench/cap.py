"""How many tokens measuring takes at most, reckoned before anything is sent: so that a cap on them is kept. No I/O."""

from __future__ import annotations

from math import ceil

from agentroute.bench.plan import Grid, Load, requests
from agentroute.bench.prompts import Lengths
from agentroute.errors import UsageError

SHORT, LONG = 16, 256
"""Words of the two prompts that warm up and tell how a server counts; the longer one as far as the window allows."""

WARM_OSL = 2
"""Answer tokens of each of them."""

UNKNOWN = Lengths(template=64.0, per_word=2.0)
"""What a server is taken to count before it has counted anything. Assumed: most chat templates are shorter, and the
words are one token of most vocabularies."""

MARGIN, SLACK = 1.05, 16
"""Random words are some tokens more or less than planned: by this share and so many tokens, assumed, at most."""


def warm_words(grid: Grid) -> int:
    """Words of the longer prompt of the warm-up."""
    return max(SHORT + 1, min(LONG, max(grid.isls), (grid.window or LONG * 4) // 3))


def most_prompt(words: int, lengths: Lengths) -> int:
    """The most tokens that a server which counts like ``lengths`` sees in a prompt of so many words."""
    return ceil(MARGIN * lengths.tokens(words)) + SLACK


def most_request(load: Load, lengths: Lengths) -> int:
    """The most tokens that one request of a load sends and receives."""
    return most_prompt(lengths.words(load.isl), lengths) + load.osl


def most_round(load: Load, lengths: Lengths) -> int:
    """The most tokens that one round of a load sends and receives, where the server keeps its clients in step."""
    return requests(load) * most_request(load, lengths)


def least_cap(grid: Grid, lengths: Lengths = UNKNOWN) -> int:
    """The least cap that lets the warm-up and a round of the first load begin."""
    warm = most_prompt(SHORT, lengths) + most_prompt(warm_words(grid), lengths) + 2 * WARM_OSL
    return warm + most_round(grid.anchors()[0], lengths)


def affordable_words(short: int, tokens: int) -> int:
    """How many words a prompt may have that must not take more than ``tokens``, when ``SHORT`` of them took ``short``.

    The template is in ``short``, so that no word takes more than its share of it.
    """
    return int((tokens - SLACK) / (MARGIN * short / SHORT))


def too_small(cap: int, least: int, grid: Grid) -> UsageError:
    """That a cap does not suffice for the first load, with one that does."""
    first = grid.anchors()[0]
    return UsageError(
        f"--max-tokens must be at least {least:,} for the warm-up and the first load ({first}), got {cap:,}"
    )

"""The generic fingerprint, for models whose tokenizer nobody has counted with.

Written by ``python -m agentroute.bench.fingerprint``; weights are in the order of ``FEATURES``.
"""

WEIGHTS: tuple[float, ...] = (
    0.0681, 0.5041, 0.2088, 1.2093, 1.3056, 0.5144, 0.5086, 1.063, 1.3238, 0.6496, 0.3165, 0.018, 0.7004, 0.5915, 0.0,
    0.539, 0.4295, 0.9942, 0.3061, 1.043, 0.853, 0.1174, 0.7535, 0.4001, 1.0302, 0.5709, 1.1777, 0.9589, 0.4797, 0.9134,
    1.0275,
)  # fmt: skip
"""Tokens for one character: fitted over all tokenizers of 100,000 tokens and more together."""

AT_MOST: tuple[float, ...] = (
    0.1075, 1.1774, 0.3781, 1.3617, 1.4296, 0.6074, 0.7568, 1.2679, 1.592, 1.047, 0.6133, 0.0711, 0.8896, 1.0554, 0.105,
    0.8812, 0.5545, 1.0895, 0.3996, 2.42, 0.9705, 0.7287, 1.5584, 1.7629, 1.8733, 1.8308, 1.5821, 1.9495, 2.6558,
    0.9573, 1.0553,
)  # fmt: skip
"""The largest of any tokenizer's weights."""

MARGIN = 0.15
"""How far above ``AT_MOST`` the upper bound stands."""

"""A deployment's rates, compiled: what depends on it alone is worked out once, by looking at steps of its roofline.

Most parts of a decode step stay as they are up to some concurrency and are lines from there on; what is left for every
load is to put a few lines together and to ask ``limits`` where they break.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf, log, log1p, log2
from operator import itemgetter

from agentroute.latency.limits import Bend, Bubble, Found, find, told
from agentroute.latency.rates import Course, Metric, RateKind, RateLimit, Workload, total_s
from agentroute.latency.roofline import CHUNK_TOKENS, KERNEL_S, STEP_S, Roofline, Seconds, Step
from agentroute.latency.search import MOST, Line

LAST_BIT = log(2.0**-54)
"""Of what is smaller than this part (logarithm), a float of 53 bits loses everything."""


class Rates:
    """What a deployment's limits depend on beside the load, worked out once."""

    def __init__(self, roofline: Roofline) -> None:
        counted, pp, dp = roofline.work, roofline.pp, roofline.attention_dp
        self.roofline, self.settled = roofline, settled(roofline)
        # Up to ``pp`` every batch is one sequence, up to ``full`` every replica's part of it.
        self.full = full = pp * dp
        self.far = far = max(self.settled, full)
        self.kernels_s = kernels_s = counted.kernels * KERNEL_S
        lone, first, second, last = (roofline.step(n) for n in (1, pp, full, 2 * far))

        def line(part: Callable[[Step], float]) -> Line:
            return _through(full, part(second), 2 * far, part(last))

        exchange = line(lambda step: step.all_to_all_inside_s + step.all_to_all_across_s)
        reduce = line(lambda step: step.all_reduce_s)
        lines = (
            *line(lambda step: step.mine), *line(lambda step: step.experts_s),
            *line(lambda step: step.around(kernels_s)[1]),
        )  # fmt: skip
        share = second.around(kernels_s)[0]
        self.steps = _Steps(roofline, full, lines, share)
        self.lines = (
            *lines, last.weights_s, share,
            lone.all_to_all_inside_s + lone.all_to_all_across_s, *exchange, lone.all_reduce_s, *reduce,
            lone.weights_s, lone.experts_s, *lone.around(kernels_s),
        )  # fmt: skip
        self.early = _through(pp, first.experts_s, full, second.experts_s) if full > pp else None
        self.lone_hops = lone.hops_s
        self.bubble = line(lambda step: step.hops_s + step.late * step.apart(kernels_s))
        self.weights = (lambda n: self.steps[n][0]) if last.weights_s > lone.weights_s else None
        self.another, self.replicas, self.alone = another(roofline), dp, pp == 1
        self.exchanges = roofline.inside_token_s > 0.0 or roofline.across_token_s > 0.0
        self.reduces = roofline.reduce_s > 0.0

    def limits(self, workload: Workload) -> dict[RateKind, RateLimit]:
        """The limit of every part of the time that grows with the concurrency, the least first.

        Of several metrics with an SLO the one that gives way first counts.
        """
        found = sorted(self.found(workload), key=_N_C)
        return {one[1]: RateLimit(one[0], one[2], *told(one, workload.n)) for one in found}

    def found(self, workload: Workload) -> list[Found]:
        """The same in no order, not yet told."""
        if workload.ttft_ms is None and workload.e2e_ms is None:
            tpot_ms = workload.tpot_ms
            return self._answering(workload, "TPOT", None if tpot_ms is None else tpot_ms / 1_000, True)
        least: dict[RateKind, Found] = {}
        for metric, slo_s in workload.asked:
            for one in self._of(workload, metric, slo_s):
                if one[1] not in least or one[0] < least[one[1]][0]:
                    least[one[1]] = one
        return list(least.values())

    def least(self, workload: Workload) -> Found:
        """The least of ``found``, in less time: of several, the one that the whole is charged to."""
        if workload.ttft_ms is None and workload.e2e_ms is None:
            tpot_ms = workload.tpot_ms
            return self._answering(workload, "TPOT", None if tpot_ms is None else tpot_ms / 1_000, False)[0]
        return min([self._of(workload, metric, slo_s, alone=False)[0] for metric, slo_s in workload.asked], key=_N_C)

    def _of(self, workload: Workload, metric: Metric, slo_s: float | None, alone: bool = True) -> list[Found]:
        if metric == "TTFT":
            return self._reading(workload, slo_s, alone)
        return self._answering(workload, metric, slo_s, alone)

    def _answering(self, workload: Workload, metric: Metric, slo_s: float | None, alone: bool) -> list[Found]:
        roofline, steps, isl, osl = self.roofline, self.steps, workload.isl, workload.osl
        past_s, token_s = roofline.sequence(isl + osl / 2)
        more_weights, more_kv, more_compute, more_exchange, more_reduce, more_pipeline, more_fixed = self.another(isl)
        always_s, by = 0.0, 1.0
        if metric == "E2E":
            always_s, by = total_s(roofline.prefilling(isl)(1)), osl - 1.0
        each = by / self.replicas / osl
        read = more_weights + more_kv
        each_s = (read if read > more_compute else more_compute) + more_exchange + more_reduce
        each_s = each * (each_s + more_pipeline + more_fixed)

        def whole(n: int) -> float:
            weights, mine, experts, share, rest = steps[n]
            read, compute = weights + mine * past_s, mine * token_s + experts
            return always_s + by * ((read if read > compute else compute) * share + rest) + (n - 1) * each_s

        (few, mine, few_experts, experts, rest, each_rest, weights, share, lone_exchange, exchange, each_exchange,
         lone_reduce, reduce, each_reduce, lone_weights, lone_experts, lone_share, lone_rest) = self.lines  # fmt: skip
        read, compute = lone_weights + past_s, token_s + lone_experts
        busy = read if read > compute else compute
        kv, each_kv = few * past_s, mine * past_s
        multiply, each_multiply = few * token_s + few_experts, mine * token_s + experts
        early = () if self.early is None else ((token_s + self.early[0], self.early[1]),)
        bends: list[Bend] = [
            (0, busy, each * more_compute, multiply, each_multiply, early),
            (1, busy - lone_weights, each * more_kv, kv, each_kv, ()),
        ]
        if self.exchanges:
            bends.append((2, lone_exchange, each * more_exchange, exchange, each_exchange, ()))
        if self.reduces:
            bends.append((4, lone_reduce, each * more_reduce, reduce, each_reduce, ()))
        base, slope, by_share = always_s - each_s + by * rest, each_s + by * each_rest, by * share
        a, b = base + by_share * (weights + kv), slope + by_share * each_kv
        c, d = base + by_share * multiply, slope + by_share * each_multiply
        if d < b:
            a, b, c, d = c, d, a, b
        return find(
            metric,
            slo_s,
            alone,
            whole,
            always_s + by * (busy * lone_share + lone_rest),
            a,
            b,
            c,
            d,
            self.settled,
            self.full,
            self.far,
            by,
            share,
            bends,
            past_s,
            compute,
            busy,
            each * more_weights,
            self.weights,
            weights,
            0.0,
            None if self.alone else self._bubble(past_s, token_s, each * more_pipeline),
            lambda: Course.of(roofline, workload, metric).spared(),
        )

    def _bubble(self, past_s: float, token_s: float, each_s: float) -> Bubble:
        """What the layer split costs where each sequence adds so much to a step."""
        few, mine, few_experts, experts, _, _, weights, share, *_ = self.lines
        steps, full, late, (hops, each_hops) = self.steps, self.full, share - 1.0, self.bubble
        a, b = hops + late * (weights + few * past_s), each_hops + late * mine * past_s
        c, d = hops + late * (few * token_s + few_experts), each_hops + late * (mine * token_s + experts)
        if d < b:
            a, b, c, d = c, d, a, b

        def bubble(n: int) -> float:
            if n < full:
                return self.roofline.step(n).seconds(past_s, token_s, self.kernels_s)[6]
            weights, mine, experts, *_ = steps[n]
            read, compute = weights + mine * past_s, mine * token_s + experts
            return hops + each_hops * n + late * (read if read > compute else compute)

        return each_s, self.lone_hops, bubble, a, b, c, d

    def _reading(self, workload: Workload, slo_s: float | None, alone: bool) -> list[Found]:
        course, replicas = Course.of(self.roofline, workload, "TTFT"), self.replicas
        at = course.at
        # From there on every replica reads its prompts in full steps.
        full = max(1.0, CHUNK_TOKENS / max(1, workload.isl)) * replicas
        lone, spread, here, there = at(1), at(replicas), at(full), at(2 * full)

        def line(part: Callable[[Seconds], float]) -> Line:
            return _through(full, part(here), 2 * full, part(there))

        def bend(kind: int, part: Callable[[Seconds], float], less_s: float) -> Bend:
            early = []
            if replicas > 1:
                early.append(_through(1.0, part(lone), replicas, part(spread)))
            if full > replicas:
                early.append(_through(replicas, part(spread), full, part(here)))
            return kind, less_s, 0.0, *line(part), tuple([one for one in early if one[1] > 0.0])

        busy = max(lone[0] + lone[1], lone[2])
        read, multiply = line(lambda s: total_s((*s[:2], 0.0, *s[3:]))), line(lambda s: total_s((0.0, 0.0, *s[2:])))
        flat, steep = (read, multiply) if read[1] < multiply[1] else (multiply, read)
        bubble = line(lambda s: s[6])
        return find(
            "TTFT",
            slo_s,
            alone,
            lambda n: total_s(at(n)),
            total_s(lone),
            *flat,
            *steep,
            1,
            ceil(full),
            ceil(full),
            1.0,
            1.0,
            [
                bend(0, lambda s: s[2], busy),
                bend(1, lambda s: s[1], busy - lone[0]),
                bend(2, lambda s: s[4] + s[5], lone[4] + lone[5]),
                bend(4, lambda s: s[3], lone[3]),
            ],
            lone[1],
            lone[2],
            busy,
            0.0,
            lambda n: at(n)[0],
            *line(lambda s: s[0]),
            None if self.alone else (0.0, lone[6], lambda n: at(n)[6], *bubble, *bubble),
            course.spared,
        )


_N_C = itemgetter(0)

Prompt = tuple[float, float, float, float, float, float, float]


def another(roofline: Roofline) -> Callable[[int], Prompt]:
    """By the tokens of prompts: seconds that every replica reads longer for two of them than for one.

    Weights, KV, computing, all-to-all, all-reduce, the layer split, and what is fixed: as ``Roofline.prefilling`` says,
    with that multiplied out which is the same for both.
    """
    counted, dp, pp, part = roofline.work, roofline.attention_dp, roofline.pp, 1.0 / roofline.pp
    state_bytes, byte_s, flop_s = counted.state_bytes, roofline.byte_s, roofline.attention_flop_s
    token_s, head_s, expert_s = roofline.token_s, roofline.head_s, dp * roofline.expert_s
    reduce_s, reduce_token_s = roofline.reduce_s, roofline.reduce_token_s
    exchange_s = roofline.inside_s + roofline.across_s
    exchange_token_s = roofline.inside_token_s + roofline.across_token_s
    hops_token_s, kernels_s = roofline.hops_token_s, counted.kernels * KERNEL_S
    fixed_s = part * kernels_s + STEP_S
    pasts = [(past, past.bytes, past.prefill_flops, past.reach_tokens) for past in counted.past]
    all_hit, all_weights_s = (
        _all_hit(roofline),
        byte_s * (counted.weight_bytes + sum([e.read_bytes(inf) for e in counted.experts])),
    )

    def weights_s(tokens: float) -> float:
        return byte_s * (counted.weight_bytes + sum([experts.read_bytes(tokens) for experts in counted.experts]))

    def of(isl: int) -> Prompt:
        new = isl if isl > 1 else 1.0
        steps = new / CHUNK_TOKENS if new > CHUNK_TOKENS else 1.0
        then = 2.0 * new / CHUNK_TOKENS if 2.0 * new > CHUNK_TOKENS else 1.0
        past_bytes, past_flops, more = steps * state_bytes, 0.0, then - steps
        for past, size, flops, reach in pasts:
            if new <= reach:
                past_bytes += size * (steps * new / 2 + new)
                past_flops += flops * new * new / 2
            else:
                past_bytes += size * (steps * past.read_tokens(new / 2) + new)
                past_flops += flops * past.pairs(new)
        kv, compute = past_bytes * byte_s, new * (token_s + expert_s) + head_s + past_flops * flop_s
        exchange, reduce = more * exchange_s + new * exchange_token_s, more * reduce_s + new * reduce_token_s
        if dp * new / steps >= all_hit:
            first = second = all_weights_s
        else:
            first, second = weights_s(dp * new / steps), weights_s(2.0 * dp * new / then)
        pipeline = 0.0
        if pp > 1 and new < CHUNK_TOKENS:
            apart, apart_token = reduce_s + exchange_s + kernels_s, new * (reduce_token_s + exchange_token_s)
            one = max(first + kv, compute) + apart + apart_token
            two = max(second + 2.0 * kv / then, 2.0 * compute / then) + apart + 2.0 * apart_token / then
            pipeline = (two - one) * part * (pp - 1) + (2.0 / then - 1.0) * new * hops_token_s
        return (
            part * (then * second - steps * first),
            part * kv,
            part * compute,
            part * exchange,
            part * reduce,
            pipeline,
            more * fixed_s,
        )

    return of


class _Steps(dict[int, tuple[float, float, float, float, float]]):
    """Of decode steps: weights, how often a sequence counts, experts, what ``Step.around`` says; doublings are kept.

    From full batches on all but experts' weights are lines; those are as ``Experts.read_bytes`` says.
    """

    def __init__(self, roofline: Roofline, full: int, lines: tuple[float, ...], share: float) -> None:
        self.roofline, self.kernels_s = roofline, roofline.work.kernels * KERNEL_S
        self.full, self.pp = full, roofline.pp
        self.routed = [
            (1.0 - one.active / one.experts, one.experts, one.ranks, one.one_bytes) for one in roofline.work.experts
        ]
        self.lines = (roofline.work.weight_bytes, roofline.byte_s, *lines, share)

    def __missing__(self, n: int) -> tuple[float, float, float, float, float]:
        if n < self.full:
            step = self.roofline.step(n)
            found = (step.weights_s, step.mine, step.experts_s, *step.around(self.kernels_s))
        else:
            weight_bytes, byte_s, few, mine, few_experts, experts, rest, each_rest, share = self.lines
            batch = n / self.pp
            for missed, every, ranks, one_bytes in self.routed:
                hit = every * (1.0 - missed**batch) / ranks
                weight_bytes += one_bytes * (hit if hit > 1.0 else 1.0)
            found = weight_bytes * byte_s, few + mine * n, few_experts + experts * n, share, rest + each_rest * n
        if not n & n - 1:
            self[n] = found
        return found


def _through(n: float, seconds: float, then: float, later: float) -> Line:
    """The line through two points."""
    each = (later - seconds) / (then - n)
    return seconds - each * n, each


def _all_hit(roofline: Roofline) -> float:
    """Tokens of a batch that hit every expert, to the last bit of a float."""
    some = [one.active / one.experts for one in roofline.work.experts if one.active < one.experts]
    return max([LAST_BIT / log1p(-share) for share in some], default=1.0)


def settled(roofline: Roofline) -> int:
    """A power of two from which on every expert is hit, to the last bit of a float, and every stage works.

    From there on, every part of a decode step is a line or the larger of two, so the whole is convex.
    """
    return min(MOST, 1 << ceil(log2(max(1.0, _all_hit(roofline)) * roofline.pp)))

"""Decide over the shipped profiles: no server, no configuration.

Run: python examples/quickstart.py
"""

from agentroute import NoFeasibleDeployment, Router, Slo, Task


def main() -> None:
    """Ask for a deployment, then for one that cannot exist."""
    router = Router.shipped()
    task = Task(
        context_tokens=8_000,
        max_output_tokens=500,
        concurrency=16,
        ttft_ms=2_000,
        tpot_ms=Slo(40, hard=False),
    )
    decision = router.decide(task)
    print(decision.explain())

    try:
        router.decide(Task(context_tokens=8_000, max_output_tokens=500, ttft_ms=1))
    except NoFeasibleDeployment as error:
        name, reason = next(iter(error.reasons.items()))
        print(f"\nA first token within 1 ms is refused by all {len(error.reasons)}; {name}: {reason}")


if __name__ == "__main__":
    main()

"""The local engine: processes on this machine, with its cores divided among them."""

from __future__ import annotations

from collections.abc import Sequence

from acclimate.bench.attempt import Setup
from acclimate.bench.crew import Crew, Heard, end_all
from acclimate.bench.events import OnEvent
from acclimate.bench.store import LOGS, Store
from acclimate.bench.workers import WorkerProcess, choose_n_workers, share_threads
from acclimate.errors import BadInput


def run_local(
    store: Store,
    names: Sequence[str],
    setup: Setup,
    on_event: OnEvent,
    *,
    n_workers: int | None = None,
    retries: int = 1,
) -> None:
    """Run jobs in processes of their own; see `acclimate.bench.run_suite`.

    Args:
        store: Where the suite is kept.
        names: Of the folders of the jobs to run.
        setup: What they have in common.
        on_event: Is told what happens.
        n_workers: Processes; None for half the cores.
        retries: How often a job is taken up again after the process that ran it has died.
    """
    n = choose_n_workers(len(names)) if n_workers is None else min(n_workers, len(names))
    if n < 1:
        raise BadInput(
            "out_of_range",
            f"Expected at least 1 worker, found {n}.",
            option="n_workers",
            found=n,
        )
    n_threads = share_threads(n)
    log = store.root / LOGS / "workers.log"
    log.parent.mkdir(exist_ok=True)

    def hire(heard: Heard) -> WorkerProcess:
        return WorkerProcess(setup.to_dict(), n_threads, heard, log)

    crew = Crew(store, names, setup, on_event, hire=hire, count=lambda: n, retries=retries)
    try:
        crew.run()
    finally:
        end_all(crew.workers)

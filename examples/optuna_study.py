"""An Optuna study whose trials are jobs of Headgate: ask and tell over `headgate.Executor`.

Each trial is a process of its own with a limit and a log, and trials run side by side. Needs Optuna
and scikit-learn: pip install optuna 'headgate-dl[executor,demo]'

    python examples/optuna_study.py --trials 12 --at-once 3
"""

from __future__ import annotations

import argparse
from concurrent.futures import FIRST_COMPLETED, wait

import optuna

import headgate


def accuracy(rate: float, width: int, epochs: int) -> float:
    """Train a small network on scanned digits; its accuracy on those that it has not seen."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    images, digits = load_digits(return_X_y=True)
    seen, unseen, seen_digits, unseen_digits = train_test_split(
        images / 16.0, digits, random_state=0
    )
    network = MLPClassifier((width,), learning_rate_init=rate, max_iter=epochs, random_state=0)
    network.fit(seen, seen_digits)
    return float(network.score(unseen, unseen_digits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()

    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True)
    )
    with headgate.Executor(options.at_once, cores=1, timeout=600) as executor:
        running = {}
        for number in range(options.trials + options.at_once):
            if number < options.trials:
                trial = study.ask()
                rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
                width = trial.suggest_int("width", 4, 64, log=True)
                running[executor.submit(accuracy, rate, width, options.epochs)] = trial
            if running and (number >= options.trials or len(running) == options.at_once):
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for call in done:
                    trial = running.pop(call)
                    if call.exception() is None:
                        study.tell(trial, call.result())
                        print(f"{call.id}: {trial.params} gives {call.result():.1%}", flush=True)
                    else:
                        study.tell(trial, state=optuna.trial.TrialState.FAIL)
                        print(f"{call.id}: {call.exception()}", flush=True)
    print(f"best: {study.best_params} with {study.best_value:.1%}")


if __name__ == "__main__":
    main()

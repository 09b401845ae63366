"""Predict compute time on each kind of node from a profile measured on one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.model.cluster import Gpu, Node
from headgate.model.profiles import Profile, TimeFit

_SINGLE = 0.25  # fixed fraction of a step that was timed at one batch size only
_CPU_EFFICIENCY = 0.5  # a step's FLOP/s relative to a large matrix product
_GPU_EFFICIENCY = 0.35  # of the peak
_GPU_REACHED = 0.8  # fraction of the peak that a large matrix product reaches
_PEAK: Mapping[str, float] = {
    "k80": 2.8e12,
    "m60": 4.8e12,
    "p4": 5.5e12,
    "p100": 9.5e12,
    "v100": 14e12,
    "t4": 8.1e12,
    "l4": 30e12,
    "l40": 91e12,
    "a10": 31e12,
    "a100": 19.5e12,
    "h100": 67e12,
    "h200": 67e12,
}
"""Float32 FLOP/s of GPUs as their makers state it; for a K80, of one of its two chips."""
_UNKNOWN_PEAK = 10e12
_CORE_FLOPS = 50e9


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds of a worker's step of b samples on c cores: alpha + beta·b / c^power. Less than one
    core slows both terms.

    Args:
        alpha: Seconds that do not depend on the batch.
        beta: Seconds that a sample adds, on one core or on the GPU.
        read: Seconds for the training process to read a sample in one thread; 0: it does not read.
        gpu: Whether a GPU computes.
        core: Speed of a core relative to the measured node.
        deviation: Deviation of the logarithm, besides that of the measurement.
        how: Origin of the figures, for people.
        bends: Measured over fitted time at each batch, as `Device.bends`.
    """

    alpha: float
    beta: float
    read: float
    gpu: bool
    core: float
    deviation: float
    how: str
    bends: tuple[tuple[float, float], ...] = ()


def power(profile: Profile) -> tuple[float, float] | None:
    """The exponent of cores in a worker's speed, and its deviation.

    None: measured with one thread only, or only while others used the machine. Others slow several
    threads more than one.
    """
    fits = sorted(
        (fit for fit in timed(profile) if fit.device == "cpu"), key=lambda fit: fit.threads
    )
    few, many = (fits[0], fits[-1]) if fits else (None, None)
    if few is None or many is None or few.threads == many.threads or profile.is_busy:
        return None
    if not few.beta_seconds_per_sample or not many.beta_seconds_per_sample:
        return None
    exponent = math.log(few.beta_seconds_per_sample / many.beta_seconds_per_sample) / math.log(
        many.threads / few.threads
    )
    return min(max(exponent, 0.05), 1.0), 0.1


def timed(profile: Profile) -> Sequence[TimeFit]:
    """The fitted lines; without any, what a single batch size tells."""
    fits = [fit for fit in profile.fits if _says(fit)]
    known = {(fit.device, fit.threads) for fit in fits}
    for step in profile.step_times:
        if (step.device, step.threads) not in known and step.seconds > 0 and step.batch > 0:
            known.add((step.device, step.threads))
            seconds_per_sample = step.seconds * (1 - _SINGLE) / step.batch
            fits.append(
                TimeFit(step.device, step.threads, step.seconds * _SINGLE, seconds_per_sample, None)
            )
    return fits


def _says(fit: TimeFit) -> bool:
    """Whether a line is plausible for steps; a flat line is."""
    alpha, beta = fit.alpha_seconds, fit.beta_seconds_per_sample
    return math.isfinite(alpha) and math.isfinite(beta) and beta >= 0 and alpha + beta > 0


def compute(profile: Profile, node: Node, measured_on: Node | None, gpus: bool = True) -> Compute:
    """Predict the compute time of workers on a node.

    Args:
        profile: A profile with at least one `timed` step, or FLOPs.
        node: The node of the workers.
        measured_on: The measured node; None: unknown.
        gpus: Whether the job may use GPUs.

    Raises:
        ValueError: The profile does not tell the time of a step.
    """
    fits = timed(profile)
    if not fits and not profile.flops_per_sample:
        raise ValueError(
            "the profile has no seconds of a step and no FLOPs of a sample, as of a loop whose "
            "batches Headgate does not see, so that nothing predicts a plan"
        )
    ratio = core_ratio(profile, node, measured_on)
    core = ratio or 1.0
    on_cpu = [fit for fit in fits if fit.device == "cpu"]
    on_gpu = [fit for fit in fits if fit.device != "cpu"]
    read = (profile.dataset.read_seconds_per_sample if profile.dataset is not None else None) or 0.0
    if node.gpus and gpus:
        alpha, beta, deviation, how = _on_gpu(profile, node.gpus[0], measured_on, on_gpu, on_cpu)
        bends = _bends(profile, on_gpu[0]) if on_gpu else ()
        return Compute(alpha, beta, read / core, True, core, deviation, how, bends)
    if on_cpu:
        fit = min(on_cpu, key=lambda fit: fit.threads)
        grown = power(profile) or (0.7, 0.0)
        alpha, beta = fit.alpha_seconds, fit.beta_seconds_per_sample * fit.threads ** grown[0]
        compared = ratio is not None or node == measured_on
        how = (
            f"fitted to steps timed on {fit.threads} thread{'s' * (fit.threads > 1)}, "
            f"{_times(core, compared)}"
        )
        unsure = 0.05 if compared else 0.2
        alpha = max(alpha, 0.0)
        return Compute(
            alpha / core, beta / core, read / core, False, core, unsure, how, _bends(profile, fit)
        )
    speed = (node.core_gflops or 0.0) * 1e9 or _CORE_FLOPS
    beta = _of_sample(profile, on_gpu[0]) * peak(on_gpu[0].device)[0] / speed if on_gpu else 0.0
    if profile.flops_per_sample is not None:
        beta = profile.flops_per_sample / (speed * _CPU_EFFICIENCY)
    how = "no step was timed on a CPU: from the speed of a core"
    return Compute(beta, beta, read / core, False, core, 0.7, how)


def _of_sample(profile: Profile, fit: TimeFit) -> float:
    """Seconds that a sample takes on another kind of device. If the step time does not depend on
    the batch, its fraction at the script's batch counts.
    """
    batch = profile.batch or max((step.batch for step in profile.step_times), default=1)
    return fit.beta_seconds_per_sample or fit.alpha_seconds / batch


def _bends(profile: Profile, fit: TimeFit) -> tuple[tuple[float, float], ...]:
    """Measured over fitted time at each batch: caches hold small batches but not large ones."""
    bends = []
    for step in sorted(profile.step_times, key=lambda step: step.batch):
        if (
            (step.device, step.threads) == (fit.device, fit.threads)
            and step.batch > 0
            and step.seconds > 0
        ):
            line = max(fit.alpha_seconds, 0.0) + fit.beta_seconds_per_sample * step.batch
            bends.append((float(step.batch), step.seconds / line))
    return tuple(bends)


def core_ratio(profile: Profile, node: Node, measured_on: Node | None) -> float | None:
    """Speed of a node's core relative to the measured node; None: one of them is unknown.

    The measured speed comes from the profile, or else from the measured node. For a convolutional
    model, convolution speed counts if both nodes were calibrated for it. Otherwise matrix products
    count.
    """
    convolution, product = profile.core_convolution_gflops, profile.core_gflops
    if measured_on is not None:
        convolution = convolution or measured_on.core_convolution_gflops
        product = product or measured_on.core_gflops
    if (
        convolution
        and node.core_convolution_gflops
        and any(kind.startswith("Conv") for kind in profile.layers)
    ):
        return node.core_convolution_gflops / convolution
    return node.core_gflops / product if node.core_gflops and product else None


def _on_gpu(
    profile: Profile,
    gpu: Gpu,
    measured_on: Node | None,
    on_gpu: Sequence[TimeFit],
    on_cpu: Sequence[TimeFit],
) -> tuple[float, float, float, str]:
    for fit in on_gpu:
        if fit.device == gpu.name:
            return (
                max(fit.alpha_seconds, 0.0),
                fit.beta_seconds_per_sample,
                0.05,
                "fitted to steps timed on this GPU",
            )
    rate, known = peak(gpu.name)
    if on_gpu:
        fit = on_gpu[0]
        measured_gflops = (
            next(
                (
                    measured_gpu.gflops
                    for measured_gpu in measured_on.gpus
                    if measured_gpu.name == fit.device
                ),
                None,
            )
            if measured_on
            else None
        )
        if gpu.gflops and measured_gflops:
            slower, unsure, by = (
                measured_gflops / gpu.gflops,
                0.2,
                "the speeds that were measured of both",
            )
        else:
            slower, unsure, by = (
                peak(fit.device)[0] / rate,
                0.3 if known else 0.8,
                "the makers' peaks",
            )
        how = f"from steps timed on {fit.device}, by {by}"
        return max(fit.alpha_seconds, 0.0), fit.beta_seconds_per_sample * slower, unsure, how
    if gpu.gflops:
        rate, known = gpu.gflops * 1e9 / _GPU_REACHED, True
    if profile.flops_per_sample is not None:
        beta, how = (
            profile.flops_per_sample / (rate * _GPU_EFFICIENCY),
            "no step was timed on a GPU: from its peak",
        )
    else:
        beta = _of_sample(profile, on_cpu[0]) * _CORE_FLOPS / rate
        how = "no step was timed on a GPU and FLOPs are not known: from its peak and a usual core's"
    return 10 * beta, beta, 0.6 if known else 1.0, how


def peak(name: str) -> tuple[float, bool]:
    """FLOP/s of a GPU by its name, and whether the name is known."""
    words = name.lower().replace("-", " ").replace("_", " ").split()
    for word in words:
        if word in _PEAK:
            return _PEAK[word], True
    return _UNKNOWN_PEAK, False


def _times(core: float, compared: bool) -> str:
    if not compared:
        return "cores taken for as fast as there"
    return (
        "as on the node that was measured"
        if core == 1.0
        else f"a core is {core:.2f} times as fast as there"
    )

"""What an experiment would take, before anything is trained: FLOPs, and on the paper's hardware hours and energy."""

from vitral.core.config import Config
from vitral.experiments.experiment import Scale
from vitral.experiments.plan import Plan
from vitral.html.text import align_columns, format_count

# Tables 2 and 6: H/14 takes 4262 exaFLOPs in 2.5k TPUv3 core-days, 20 TFLOP/s; L/16 1567 in 0.68k, 27 TFLOP/s.
FLOPS_PER_SECOND = 23e12  # of a core of a TPUv3, as the paper trains
WATTS = 225.0  # of a core: half of the 450 W thermal design power of a TPUv3 chip
CORES = 512
DAY = 86_400.0


class ArmCost(Config):
    """What all runs of an arm take."""

    arm: str
    recipe: str
    parameters: int
    steps: int  # of a run
    batch_size: int
    runs: int
    flops: float  # of all runs


class PlanSummary(Config):
    """The plan of an experiment."""

    name: str
    title: str
    scale: Scale
    arms: tuple[ArmCost, ...]
    flops: float
    core_days: float
    hours: float  # on `CORES` cores
    kilowatt_hours: float

    def __str__(self) -> str:
        """The plan as a table."""
        head = ["arm", "recipe", "parameters", "steps", "batch", "runs", "FLOPs"]
        rows = [
            [
                each.arm,
                each.recipe,
                format_count(each.parameters),
                f"{each.steps:,}",
                f"{each.batch_size:,}",
                str(each.runs),
                f"{each.flops:.3g}",
            ]
            for each in self.arms
        ]
        lines = [f"{self.title}, plan of the scale {self.scale}", *align_columns([head, *rows], right=range(2, 7))]
        runs = sum(each.runs for each in self.arms)
        lines.append(f"{runs} runs, {self.flops:.3g} FLOPs")
        if self.scale == "full":
            lines.append(
                f"on TPUv3 at the {FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s a core of the paper: "
                f"{self.core_days:,.1f} core-days, {self.hours:,.1f} hours on {CORES} cores, "
                f"{self.kilowatt_hours:,.0f} kWh at {WATTS:.0f} W a core"
            )
        return "\n".join(lines)


def summarize_plan(name: str, plan: Plan) -> PlanSummary:
    """The plan with its cost."""
    arms = []
    for each in plan.arms:
        runs = plan.runs_of(each)
        arms.append(
            ArmCost(
                arm=each.arm.name,
                recipe=each.recipe.name,
                parameters=each.parameters,
                steps=each.steps if runs else 0,
                batch_size=each.recipe.batch_size,
                runs=runs,
                flops=each.flops * runs,
            )
        )
    flops = sum(each.flops for each in arms)
    days = flops / FLOPS_PER_SECOND / DAY
    return PlanSummary(
        name=name,
        title=plan.experiment.title,
        scale=plan.scale,
        arms=tuple(arms),
        flops=flops,
        core_days=days,
        hours=days * 24 / CORES,
        kilowatt_hours=days * 24 * WATTS / 1000,
    )

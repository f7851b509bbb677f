import pytest

from vitral.tasks.selfsupervised.schedules import (
    ConstantMomentum,
    ConstantTemperature,
    CosineMomentum,
    LinearMomentum,
    WarmupTemperature,
)


def test_a_momentum_rises_to_its_end() -> None:
    cosine, linear = CosineMomentum(start=0.996, end=1.0), LinearMomentum(start=0.9, end=1.0, until=0.5)
    assert [cosine.value(done) for done in (0.0, 0.5, 1.0)] == pytest.approx([0.996, 0.998, 1.0])
    assert [linear.value(done) for done in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.9, 0.95, 1.0, 1.0])
    assert ConstantMomentum(start=0.99).value(0.7) == 0.99


def test_a_temperature_warms_up_and_stays() -> None:
    warm = WarmupTemperature(start=0.04, end=0.07, until=0.3)
    assert [warm.value(done) for done in (0.0, 0.15, 0.3, 0.9)] == pytest.approx([0.04, 0.055, 0.07, 0.07])
    assert ConstantTemperature(start=0.02).value(0.5) == 0.02

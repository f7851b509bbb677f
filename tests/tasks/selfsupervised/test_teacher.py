import torch

from tests.models.variants import small
from vitral.models.block import PreNorm
from vitral.tasks.selfsupervised.projection import BatchNorm, batch_norm_mlp
from vitral.tasks.selfsupervised.teacher import Teacher


def student() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    return small(block=PreNorm(drop_path_rate=0.5)).build(), batch_norm_mlp([32, 8, 4], last_affine=False)


def test_a_teacher_starts_as_its_student_and_follows_it_by_the_momentum() -> None:
    model, head = student()
    teacher = Teacher(model, head)  # type: ignore[arg-type]
    own, students = [*teacher.parameters()], [*model.parameters(), *head.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(own, students, strict=True))
    assert not any(weight.requires_grad for weight in own)
    before = [weight.clone() for weight in own]
    with torch.no_grad():
        for weight in students:
            weight.add_(1.0)
    teacher.follow(0.75, model, head)  # type: ignore[arg-type]
    for weight, old in zip(own, before, strict=True):
        torch.testing.assert_close(weight, old + 0.25)
    teacher.follow(1.0, model, head)  # type: ignore[arg-type]
    torch.testing.assert_close(own[0], before[0] + 0.25)


def test_a_teacher_drops_nothing_and_its_batch_norms_follow_the_mode() -> None:
    model, head = student()
    teacher = Teacher(model, head)  # type: ignore[arg-type]
    images = torch.randn(6, 3, 32, 48)
    teacher.train()
    assert torch.equal(teacher(images), teacher(images))  # no stochastic depth
    norms = [module for module in teacher.modules() if isinstance(module, BatchNorm)]
    others = [module for module in teacher.modules() if not isinstance(module, BatchNorm) and module is not teacher]
    assert all(norm.training for norm in norms)
    assert not any(module.training for module in others)
    assert norms[0].mean.abs().max() > 0  # of its own batches
    teacher.eval()
    assert not any(norm.training for norm in norms)
    assert head[1].mean.abs().max() == 0  # type: ignore[index]

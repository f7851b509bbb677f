"""Which requests are accepted."""

from tests.errors import raises
from vitral.serving.batching.admission import Admission, Cost
from vitral.serving.config import Limits
from vitral.serving.http.problems import BusyError


def test_as_many_images_as_the_queue_holds_are_accepted() -> None:
    admission, second = Admission(Limits(queue=3, queue_seconds=9)), Cost(1.0)
    with admission.accept(2, second):
        admission.check()
        with raises("serve.queue_full", 2, 3), admission.accept(2, second):
            raise AssertionError
        with admission.accept(1, Cost(2.0)), raises("serve.queue_full") as caught:
            admission.check()
        assert isinstance(caught.value, BusyError)
        assert caught.value.retry_after == 4.0
    assert (admission.images, admission.seconds) == (0, 0.0)


def test_a_request_of_many_images_is_accepted_if_nothing_waits() -> None:
    admission = Admission(Limits(queue=3))
    with admission.accept(5, Cost(20.0)):
        assert (admission.images, admission.seconds) == (5, 100.0)


def test_work_that_takes_too_long_is_refused_in_advance_by_what_it_costs_now() -> None:
    admission, cost = Admission(Limits(queue=64, queue_seconds=2)), Cost(0.5)
    with admission.accept(2, cost):
        admission.check()
        cost.seconds = 1.75  # the machine became slower
        with raises("serve.queue_timeout") as caught:
            admission.check()
        assert isinstance(caught.value, BusyError)
        assert caught.value.retry_after == 1.5


def test_a_server_that_stops_accepts_only_what_had_begun() -> None:
    admission = Admission(Limits())
    admission.stopping = True
    with raises("serve.stopping"):
        admission.check()
    with admission.accept(1, Cost(0.1)):
        assert admission.images == 1


def test_the_cost_follows_what_batches_take() -> None:
    cost = Cost(1.0)
    for _ in range(40):
        cost.learn(4, 2.0)
    assert abs(cost.seconds - 0.5) < 1e-3

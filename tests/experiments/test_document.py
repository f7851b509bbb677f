"""docs/paper.md says what the results that are kept with the code say."""

from pathlib import Path

from vitral.experiments.document import read_results, render_document
from vitral.experiments.drawing import draw_result, to_png
from vitral.experiments.registry import experiment_files, get_experiment

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def test_the_page_is_what_the_results_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_document(read_results())


def test_every_result_is_of_an_experiment_that_ships_and_has_its_provenance() -> None:
    results = read_results()
    assert {each.name for each in results} <= set(experiment_files())
    for result in results:
        assert result.cells
        assert all(cell.code.commit and cell.code.machine for cell in result.cells)
        for arm in result.arms:
            values = [cell.values[result.metric] for cell in result.cells if cell.arm == arm.arm]
            assert tuple(values) == arm.values


def test_a_changed_result_changes_the_page() -> None:
    results = read_results()
    changed = [each.model_copy(update={"verdict": "not held"}) for each in results]
    assert render_document(changed) != render_document(results)


def test_a_result_of_every_kind_of_figure_is_drawn() -> None:
    kinds = {get_experiment(each.name).figure: each for each in read_results() if each.trained}
    for result in kinds.values():
        assert to_png(draw_result(get_experiment(result.name), result)).startswith(b"\x89PNG")

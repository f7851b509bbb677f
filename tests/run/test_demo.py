from pathlib import Path

from vitral.run.demo import demo


def test_the_demo_shows_an_answer_for_each_class_the_page_and_three_commands(tmp_path: Path) -> None:
    told = demo(str(tmp_path / "run"), "steps=20", "data.share=0.1").splitlines()
    assert told[0].split() == ["image", "of", "answer", "how", "sure"]
    rows = told[1:11]
    assert [row[:14].strip() for row in rows][::9] == ["T-shirt/top", "Ankle boot"]
    for row in rows:
        assert ("wrong" in row) == (row[:14].strip() != row[14:28].strip())
        assert row[28:37].strip().endswith("%")
    assert told[12].startswith("right on ")
    assert f"the whole story: {tmp_path / 'run' / 'report.html'}" in told
    assert (tmp_path / "run" / "report.html").exists()
    assert [line.strip().split()[:2] for line in told[-3:]] == [
        ["vitral", "describe"],
        ["vitral", "check"],
        ["vitral", "train"],
    ]

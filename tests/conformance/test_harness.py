"""The harness on common tests of known outcome."""

from pathlib import Path
from typing import Any

import pytest
from transformers import BartConfig, BartForConditionalGeneration, BartModel, MarianConfig, MarianModel, MarianMTModel

from .harness import Family, Outcomes, build_comparing_tester
from .stubs import GenerationTesterMixin
from .suite import Suite, SuiteUnavailableError, fetch_tests

FAMILY = Family(MarianConfig, MarianModel, MarianMTModel)
PEER = Family(BartConfig, BartModel, BartForConditionalGeneration)


class CommonTests:
    """One test with two subtests, whose outcomes are set for each config class."""

    outcomes: dict[type, tuple[str, str]]

    def test_model(self) -> None:
        case: Any = self
        for outcome in self.outcomes[case.model_tester.config_class]:
            with case.subTest(outcome):
                if outcome == "skip":
                    case.skipTest("not for this model")
                case.assertEqual(outcome, "pass")


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        (("pass", "pass"), ("pass", "pass"), "pass"),
        (("pass", "pass"), ("fail", "skip"), "pass"),
        (("pass", "fail"), ("pass", "pass"), "fail"),
        (("pass", "fail"), ("skip", "skip"), "fail"),
        (("pass", "fail"), ("fail", "pass"), "skip"),
        (("pass", "skip"), ("pass", "pass"), "fail"),
        (("skip", "skip"), ("pass", "skip"), "fail"),
        (("pass", "skip"), ("skip", "pass"), "skip"),
        (("skip", "skip"), ("fail", "pass"), "skip"),
    ],
)
def test_a_family_is_held_to_what_its_peer_passes(
    own: tuple[str, str], peer: tuple[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommonTests, "outcomes", {MarianConfig: own, BartConfig: peer}, raising=False)
    common = Suite(CommonTests, GenerationTesterMixin, config_tester=None)
    result = Outcomes()
    tester: Any = build_comparing_tester(common, FAMILY, PEER)
    tester("test_model").run(result)
    assert result.testsRun == 1
    assert ("fail" if result.problems else "skip" if result.skips else "pass") == expected


def test_an_index_out_of_reach_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SuiteUnavailableError, match=r"transformers==0\.0\.0\.dev0"):
        fetch_tests("0.0.0.dev0")
    assert not list((tmp_path / "vanilla-transformer").glob("*tests*"))

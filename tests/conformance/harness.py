"""A tester of one encoder-decoder model family on transformers' common tests, the same for every family."""

import sys
import unittest
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from unittest import mock

import torch
from transformers import PreTrainedConfig, PreTrainedModel, set_seed
from transformers.models.auto import modeling_auto
from transformers.testing_utils import torch_device

from .suite import Suite

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# Names that every family's config has. Ids below 3 are special, and the source ends with `eos_token_id`.
TINY_CONFIG: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 4,
    "decoder_ffn_dim": 4,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "max_position_embeddings": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


@dataclass(frozen=True)
class Family:
    """A config with the bare model and the model with a head that are made from it."""

    config: type[PreTrainedConfig]
    base: type[PreTrainedModel]
    seq2seq: type[PreTrainedModel]


class ModelTester:
    """What the common tests ask about a model's inputs and sizes. They read it by attribute."""

    batch_size = 13
    seq_length = 7
    is_training = True
    hidden_size = TINY_CONFIG["d_model"]
    num_hidden_layers = TINY_CONFIG["encoder_layers"]
    num_attention_heads = TINY_CONFIG["encoder_attention_heads"]

    def __init__(self, config_class: type[PreTrainedConfig]) -> None:
        self.config_class = config_class

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """A tiny config, and inputs of whole sentences: no padding, and `eos_token_id` only at a source's end."""
        config = self.config_class(**TINY_CONFIG)
        shape = (self.batch_size, self.seq_length)
        source = torch.randint(3, config.vocab_size, shape, device=torch_device)
        source[:, -1] = config.eos_token_id
        target = torch.randint(3, config.vocab_size, shape, device=torch_device)
        target[:, 0] = config.decoder_start_token_id
        mask = torch.ones(shape, dtype=torch.long, device=torch_device)
        inputs = {"input_ids": source, "attention_mask": mask}
        return config, inputs | {"decoder_input_ids": target, "decoder_attention_mask": mask.clone()}


class Outcomes(unittest.TestResult):
    """What one test reported, its subtests' reports included, exceptions whole."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[ExceptionInfo] = []
        self.skips: list[str] = []

    def addError(self, test: unittest.TestCase, err: ExceptionInfo) -> None:  # noqa: N802
        self.problems.append(err)

    def addFailure(self, test: unittest.TestCase, err: ExceptionInfo) -> None:  # noqa: N802
        self.problems.append(err)

    def addSubTest(  # noqa: N802
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: ExceptionInfo | None
    ) -> None:
        if err is not None:
            self.problems.append(err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.skips.append(reason)


def build_tester(suite: Suite, family: Family) -> type[unittest.TestCase]:
    """A test case that runs every common test on a family."""
    model_tester_mixin: Any = suite.model_tester_mixin
    generation_tester_mixin: Any = suite.generation_tester_mixin

    class Tester(model_tester_mixin, generation_tester_mixin, unittest.TestCase):
        all_model_classes = (family.base, family.seq2seq)
        is_encoder_decoder = True
        # Without this the test of initial weights is only for config files that state a copyright of 2023 or later.
        test_can_init_all_missing_weights_before_2023 = True

        def setUp(self) -> None:
            set_seed(0)
            self.model_tester = ModelTester(family.config)
            self._enter_names()

        def _enter_names(self) -> None:
            # The common tests tell a bare model from one with a head, which has a loss, by lists of class names,
            # and pass over a class that is in none. A model of transformers itself is there already.
            model_type = family.config.model_type
            for names, model in (
                (modeling_auto.MODEL_MAPPING_NAMES, family.base),
                (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, family.seq2seq),
            ):
                patch = mock.patch.dict(names, {model_type: model.__name__})
                patch.start()
                self.addCleanup(patch.stop)

        def test_config(self) -> None:
            suite.config_tester(self, config_class=family.config, **TINY_CONFIG).run_common_tests()

    return Tester


def build_comparing_tester(suite: Suite, family: Family, peer_family: Family) -> type[unittest.TestCase]:
    """A test case that runs every common test on a family and asks no less of it than its peer gives.

    The peer runs only the tests that the family skips or fails, in the same harness. A skip stands where the peer
    skips as much or fails; a failure is a skip where the peer fails as well.
    """
    tester: Any = build_tester(suite, family)
    peer_tester = build_tester(suite, peer_family)
    peer_name = peer_family.seq2seq.__name__

    class ComparingTester(tester):
        def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult:
            result = self.defaultTestResult() if result is None else result
            own, peer = Outcomes(), Outcomes()
            super().run(own)
            if own.problems or own.skips:
                peer_tester(self._testMethodName).run(peer)
            result.startTest(self)
            self._report(own, peer, result)
            result.stopTest(self)
            return result

        def _report(self, own: Outcomes, peer: Outcomes, result: unittest.TestResult) -> None:
            if own.problems and peer.problems:
                result.addSkip(self, f"{peer_name} fails this test too: {peer.problems[0][1]!r}")
            elif own.problems:
                for problem in own.problems:
                    result.addError(self, problem)
            elif len(own.skips) > len(peer.skips) and not peer.problems:
                try:
                    raise AssertionError(f"skipped, but {peer_name} passes: {'; '.join(own.skips)}")
                except AssertionError:
                    result.addFailure(self, sys.exc_info())
            elif own.skips:
                result.addSkip(self, own.skips[0])
            else:
                result.addSuccess(self)

    return ComparingTester

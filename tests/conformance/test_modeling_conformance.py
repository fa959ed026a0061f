"""transformers' own common tests on this model, held against what its Marian does in the same harness.

Everything that Marian passes must pass here, and no more may be skipped.
"""

import os

import pytest
from transformers import MarianConfig, MarianModel, MarianMTModel

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)

from .harness import Family, build_comparing_tester
from .suite import SuiteUnavailableError, load_suite

try:
    SUITE = load_suite()
except SuiteUnavailableError as error:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip(str(error), allow_module_level=True)

TestModelingConformance = build_comparing_tester(
    SUITE,
    Family(VanillaTransformerConfig, VanillaTransformerModel, VanillaTransformerForConditionalGeneration),
    peer_family=Family(MarianConfig, MarianModel, MarianMTModel),
)

"""Stand-ins for what transformers' common tests import and its source distribution does not hold.

They only let the common tests be imported and say what a tester is; none of them tests anything by itself.
"""

from typing import Any


class ExportTesterMixin:
    """The tests of `torch.export`, ONNX and the like: none here."""


class GenerationTesterMixin:
    """The tests of `generate`: none here. The common tests demand this base of every model that can generate."""


# Values that differ from the defaults of `PreTrainedConfig`, for the check that a config keeps what it is given.
CONFIG_COMMON_KWARGS: dict[str, Any] = {
    "architectures": ["SomeModel"],
    "chunk_size_feed_forward": 5,
    "dtype": "float16",
    "id2label": {0: "label"},
    "label2id": {"label": 0},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}

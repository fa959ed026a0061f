"""The Transformer of *Attention Is All You Need* as a Hugging Face model.

Importing it registers the Auto classes and the pipeline "translation".
"""

from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from .pipeline_vanilla_transformer import TASK, TranslationPipeline
from .translation import translate

AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True)

if not hasattr(TranslationPipeline, "_registered_impl"):  # registering twice would bring a warning
    pipelines.PIPELINE_REGISTRY.register_pipeline(
        TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
# Newer transformers refuse the tasks of this table by name, registered or not.
getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)


def _keep_for_saving(config: VanillaTransformerConfig, value: Any) -> None:
    config.__dict__["custom_pipelines"] = value


# `pipeline` runs the code of a folder, or refuses to, where its config names a pipeline. Here it is to take the
# registered one instead: its config names none, though its config.json does.
VanillaTransformerConfig.custom_pipelines = property(lambda config: {}, _keep_for_saving)

__version__ = "0.1.0"
__all__ = [
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
    "translate",
]

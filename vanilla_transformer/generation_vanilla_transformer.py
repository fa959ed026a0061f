"""What decoding adds to transformers' `generate`: the paper's penalty, a limit for each sentence, quick searches."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .beam_search_vanilla_transformer import GNMTLengthPenalty, beam_search
from .greedy_search_vanilla_transformer import greedy_search
from .stopping_vanilla_transformer import LengthLimitForEachSentence, MinimumLengthForEachSentence, pad_after_end

# §6.1: beam search with 4 beams and alpha = 0.6; the maximum output length is input length + 50.
PAPER_DECODING = {
    "num_beams": 4,
    "length_penalty": 0.6,
    "length_penalty_kind": "gnmt",
    "early_stopping": "never",
    "max_length_margin": 50,
}
# Of these, what transformers refuses to save beside one beam; where they are not set, "gnmt" brings the paper's.
FOR_SEVERAL_BEAMS = ("length_penalty", "early_stopping")
LARGEST_PENALTY = 10  # as an exponent of a hypothesis' length: what it divides by is still a float32 number
DEFAULT_MAX_LENGTH = 20  # of transformers
OWN_SETTINGS = ("max_length_margin", "length_penalty_kind", "min_length_ratio", "coverage_penalty")
# What beam_search and greedy_search leave to transformers' own, if it is set to anything.
NOT_OWN = (
    *("do_sample", "num_beam_groups", "penalty_alpha", "dola_layers", "constraints", "force_words_ids", "low_memory"),
    *("output_scores", "output_logits", "output_attentions", "output_hidden_states", "streamer", "assistant_model"),
    *("cache", "past_key_values", "cache_implementation", "decoder_attention_mask", "decoder_inputs_embeds"),
    *("stop_strings", "tokenizer", "synced_gpus", "token_healing", "custom_generate", "prompt_lookup_num_tokens"),
)


class VanillaTransformerGenerationMixin(GenerationMixin):
    """transformers' generation with the paper's defaults and its limit, input length + 50 for each sentence (§6.1).

    Attributes:
        stood_in_for: the `forward` of the model and of those of its parts that the searches here do not call, but
            compute by themselves.
    """

    stood_in_for: frozenset[Callable[..., Any]] = frozenset()

    def set_default_generation_config(self) -> None:
        """The decoding settings of a model that no `generation_config.json` came with."""
        for name, value in PAPER_DECODING.items():
            setattr(self.generation_config, name, value)
        # What claims to be read off the model's config loses its own names on loading.
        self.generation_config._from_model_config = False

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """transformers' `generate`, with every argument it takes; the differences:

        - Without `max_new_tokens` and `max_length`, each sentence ends at its own limit: the tokens of its source
          (end token counted) plus `max_length_margin` new tokens (end token counted). No end token is forced there.
        - Without `attention_mask`, what is `pad_token_id` in the source is padding.
        - After the end token only padding follows, under beam search too.
        - A beam's score is its log-probability over ((5 + L) / 6)^`length_penalty` with `length_penalty_kind="gnmt"`
          (§6.1), over L^`length_penalty` with "power" or none, as in transformers; L counts the end token. With
          "gnmt" the defaults of `length_penalty` and `early_stopping` are the paper's.
        - `coverage_penalty` adds beta times the sum over the source of log(min(attention it has had, 1)), the
          attention being the last layer's, mean over heads (Wu et al. 2016, equation 14). Default: none.
        - `min_length_ratio` is the least number of new tokens for each source token, end tokens counted; default none.
        - The search itself is `beam_search` or `greedy_search`, unless an option is set that they do not know, or the
          model computes something else than they do: a `forward` of another's, a hook, another attention function.

        Raises:
            ValueError: more tokens are asked for, or given as a prompt, than there are learned positions; or a
                `length_penalty_kind` that does not exist, or a `length_penalty` beyond 10.
        """
        settings = GenerationSettings(kwargs, generation_config, self.generation_config)
        margin = settings.get("max_length_margin")
        for name in OWN_SETTINGS:
            kwargs.pop(name, None)
        changes: dict[str, Any] = {}
        source_ids = kwargs.get("input_ids") if inputs is None else inputs
        pad = self.config.pad_token_id
        if (
            kwargs.get("attention_mask") is None
            and source_ids is not None
            and source_ids.dim() == 2
            and pad is not None
        ):
            kwargs["attention_mask"] = source_ids.ne(pad).long()

        prompt_length = self._prompt_length(kwargs.get("decoder_input_ids"), settings)
        limits = None
        room = self._room_for_new_tokens(prompt_length)
        asked = settings.new_tokens(prompt_length)
        if room is not None and (asked or 1) > room:
            raise ValueError(
                f"{asked or 1} new tokens after {prompt_length} do not fit `max_position_embeddings`="
                f"{self.config.max_position_embeddings} learned positions: room is left for {max(room, 0)}"
            )
        lengths = _source_lengths(kwargs)
        if asked is None and margin is not None and lengths is not None:
            limits = (lengths + margin).clamp(min=1, max=room)
            changes["max_length"] = prompt_length + int(limits.max())
        minimums = None
        if (ratio := settings.get("min_length_ratio")) and lengths is not None:
            minimums = (lengths * ratio).ceil().long()
        coverage_penalty = settings.get("coverage_penalty") or 0.0
        with_beams = (settings.get("num_beams") or 1) > 1
        own = not any(args) and _has_own_search(self, settings)
        if with_beams:
            changes["length_penalty"] = length_penalty_of(settings)
            changes["early_stopping"] = settings.get("early_stopping") or False
        if coverage_penalty and not (own and with_beams):
            raise ValueError(
                "`coverage_penalty` needs beam search, without sampling and without recorded scores or states"
            )
        if own and with_beams:
            kwargs["custom_generate"] = partial(
                beam_search, limits=limits, minimums=minimums, coverage_penalty=coverage_penalty
            )
        elif own:
            kwargs["custom_generate"] = partial(greedy_search, limits=limits, minimums=minimums)
        else:
            stopping_criteria, logits_processor = list(stopping_criteria or []), list(logits_processor or [])
            if limits is not None:
                stopping_criteria.append(LengthLimitForEachSentence(limits, prompt_length))
            if minimums is not None and (ends := settings.get("eos_token_id")) is not None:
                ends = torch.as_tensor(ends).reshape(-1).tolist()
                logits_processor.append(MinimumLengthForEachSentence(minimums, prompt_length, ends))
            stopping_criteria = StoppingCriteriaList(stopping_criteria)
            logits_processor = LogitsProcessorList(logits_processor)
        if generation_config is None:
            kwargs |= changes
        else:  # a keyword beside a config would bring transformers' warning about the two
            generation_config = copy.deepcopy(generation_config)
            for name, value in changes.items():
                setattr(generation_config, name, value)

        output = super().generate(inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs)
        sequences = output if isinstance(output, Tensor) else output.sequences
        pad_after_end(sequences[:, prompt_length:], limits, settings.get("eos_token_id"), settings.get("pad_token_id"))
        return output

    def _prompt_length(self, decoder_input_ids: Tensor | None, settings: "GenerationSettings") -> int:
        """Decoder tokens before the first new one; transformers puts the start token before a prompt that lacks it."""
        if decoder_input_ids is None:
            return 1
        start = settings.get("decoder_start_token_id")
        start = settings.get("bos_token_id") if start is None else start
        starts = torch.as_tensor(start, device=decoder_input_ids.device)
        return decoder_input_ids.shape[1] + int((decoder_input_ids[:, 0] != starts).all())

    def _room_for_new_tokens(self, prompt_length: int) -> int | None:
        """New tokens that learned positions can hold; sinusoids have no end. The last token is never fed back."""
        if self.config.position_encoding != "learned":
            return None
        return self.config.max_position_embeddings - self.config.position_offset - prompt_length + 1


class GenerationSettings:
    """What `generate` will use for a setting: its keyword, else the config it was given, else the model's own."""

    def __init__(self, kwargs: dict[str, Any], *configs: GenerationConfig | None) -> None:
        self.sources = [dict(kwargs), *(vars(config) for config in configs if config is not None)]
        if self.get("length_penalty_kind") == "gnmt":
            self.sources.append({name: PAPER_DECODING[name] for name in FOR_SEVERAL_BEAMS})

    def get(self, name: str) -> Any:
        return next((source[name] for source in self.sources if source.get(name) is not None), None)

    def new_tokens(self, prompt_length: int) -> int | None:
        """The number of new tokens asked for; `None` where `max_length_margin` says it, or nothing does.

        Beside a margin a `max_length` of 20 is not asked for: it is transformers' default, which its trainer writes
        into the model's config in evaluation.
        """
        for source in self.sources:
            if source.get("max_new_tokens") is not None:
                return int(source["max_new_tokens"])
            if source.get("max_length_margin") is not None and source.get("max_length") in (None, DEFAULT_MAX_LENGTH):
                return None
            if source.get("max_length") is not None:
                return int(source["max_length"]) - prompt_length
        return None


def savable(config: GenerationConfig) -> GenerationConfig:
    """The same decoding, as transformers agrees to save it."""
    if (config.num_beams or 1) == 1:
        config = copy.deepcopy(config)
        for name in FOR_SEVERAL_BEAMS:
            setattr(config, name, None)
    return config


def length_penalty_of(settings: GenerationSettings) -> float:
    """The exponent of a hypothesis' length, of the kind asked for."""
    kind, alpha = settings.get("length_penalty_kind") or "power", settings.get("length_penalty")
    alpha = 1.0 if alpha is None else float(alpha)
    if kind not in ("gnmt", "power"):
        raise ValueError(f"`length_penalty_kind` is 'gnmt' (((5 + L) / 6)^alpha) or 'power' (L^alpha), not {kind!r}")
    if not abs(alpha) <= LARGEST_PENALTY:
        raise ValueError(f"`length_penalty` is an exponent of at most {LARGEST_PENALTY}, up or down, not {alpha:g}")
    return GNMTLengthPenalty(alpha) if kind == "gnmt" else alpha


def _has_own_search(model: Any, settings: GenerationSettings) -> bool:
    """Whether `beam_search` or `greedy_search` does what is asked for; otherwise transformers' own does."""
    in_pieces = len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1 or hasattr(model, "unshard")
    greedy = (settings.get("num_beams") or 1) == 1
    return not (
        model.training
        or in_pieces
        or _computes_otherwise(model)
        or settings.get("use_cache") is False
        or any(_is_set(settings.get(name)) for name in NOT_OWN)
        or (greedy and settings.get("return_dict_in_generate"))  # its result has the cache to go on with
    )


def _computes_otherwise(model: Any) -> bool:
    """Whether a step of the model is something else than what `beam_search` and `greedy_search` compute."""
    decoder = model.model.decoder
    attend = ALL_ATTENTION_FUNCTIONS.get(decoder.config._attn_implementation)
    prepare = model.prepare_inputs_for_generation  # prefix tuning adds keys and values there
    return (
        getattr(prepare, "__func__", None) is not GenerationMixin.prepare_inputs_for_generation
        or any(_forward(part) not in model.stood_in_for for part in _parts_stood_in_for(model))
        or not (attend is None or attend.__module__.startswith("transformers."))  # all of theirs are one formula
        or _has_any_global_hook()
        or any(_has_hooks(module) for module in (model, model.model, *decoder.modules()))
    )


def _parts_stood_in_for(model: Any) -> Iterator[Any]:
    """What is not called in an own search, from the outside to the inside: what is wrapped need not have parts."""
    yield from (model, model.model, model.model.decoder)
    for layer in model.model.decoder.layers:
        yield layer
        yield layer.self_attn
        yield layer.encoder_attn


def _forward(module: Any) -> Any:
    """The function that calling a module runs, but for accelerate's around it, which changes number types alone."""
    forward = module.forward
    if getattr(forward, "__module__", None) == "accelerate.utils.operations":
        forward = module._original_forward
    return getattr(forward, "__func__", forward)


def _has_hooks(module: Any) -> bool:
    """Whether calling a module does more than its `forward`; transformers' own hooks only record."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return "_hf_hook" in vars(module) or any(not hook.__module__.startswith("transformers.") for hook in hooks)


def _is_set(value: Any) -> bool:
    """Whether an option asks for something: one group of beams, for one, is what there is anyway."""
    return not (value is None or value is False or (isinstance(value, int) and value == 1 and value is not True))


def _source_lengths(kwargs: dict[str, Any]) -> Tensor | None:
    """Real tokens of each source (B,), from the mask, or from the embeddings or encoder output given for ids."""
    if kwargs.get("attention_mask") is not None:
        return kwargs["attention_mask"].long().sum(dim=-1)
    states = kwargs.get("inputs_embeds")
    if states is None and kwargs.get("encoder_outputs") is not None:
        states = kwargs["encoder_outputs"][0]
    return None if states is None else torch.full(states.shape[:1], states.shape[1], device=states.device)

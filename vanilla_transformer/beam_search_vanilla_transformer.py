"""Beam search (§6.1) in which the hypotheses of a sentence share its source, and finished sentences leave the batch.

It gives what transformers' own beam search gives. Shapes in comments: B sentences, K hypotheses (beams) of each,
S source tokens, h heads, d = d_model, V vocabulary entries.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, GenerateBeamEncoderDecoderOutput, MaxLengthCriteria

IMPOSSIBLE = -1e9  # transformers' score of a hypothesis that is not there
COLUMNS_AT_FIRST = 32  # steps for which there is room before keys and values are moved to a larger place
LEAVE_AT = 0.75  # sentences are taken out when at most this share of those in the batch is unfinished


class GNMTLengthPenalty(float):
    """alpha, as the exponent of a length L: `L ** penalty` is ((5 + L) / 6)^alpha (Wu et al. 2016, equation 14).

    transformers' beam search divides by `length ** length_penalty`: with this it divides as the paper does.
    """

    def __rpow__(self, length: Any, modulo: Any = None) -> Any:
        return divisor(length, self)


def divisor(length: Any, penalty: float) -> Any:
    """What the log-probability of a hypothesis of that length, a number or a tensor, is divided by."""
    if isinstance(penalty, GNMTLengthPenalty):
        return ((5 + length) / 6) ** float(penalty)
    return length**penalty


class SharedSourceDecoder:
    """The decoder, step by step, over all hypotheses of a batch of sentences.

    The hypotheses of a sentence stand where a sequence has its positions: (B, K, d). So they attend to one copy of the
    source's keys and values. Those of target tokens stay where they are written: after a step each hypothesis is told
    by the mask which columns are its own, instead of being given a copy in a new order.

    Args:
        decoder: the decoder of a model, in evaluation mode.
        encoder_states: (B, S, d).
        encoder_mask: (B, S), 1 for real tokens; `None`: all are.
    """

    def __init__(self, decoder: Any, encoder_states: Tensor, encoder_mask: Tensor | None) -> None:
        self.decoder = decoder
        self.source_mask: Tensor | None = None
        if encoder_mask is not None and not bool(encoder_mask.all()):
            self.source_mask = _additive(encoder_mask[:, None, None].bool(), encoder_states.dtype)  # (B, 1, 1, S)
        self.layers = [_LayerState(layer, encoder_states) for layer in decoder.layers]

    def forward(self, tokens: Tensor, position: Tensor, visible: Tensor, length: int) -> Tensor:
        """States of `tokens` (B, T): (B, T, d).

        They stand at `position` (1, T or 1), below `length`, and see the columns `visible` (B, 1, T, columns); theirs
        are the last T.
        """
        decoder = self.decoder
        x = decoder.add_positions(decoder.embed(tokens, None), position, length)
        mask = _additive(visible, x.dtype)
        for layer in self.layers:
            x = layer.forward(x, mask, self.source_mask)
        return decoder.layer_norm(x)

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences, by their indices."""
        if self.source_mask is not None:
            self.source_mask = self.source_mask[sentences]
        for layer in self.layers:
            layer.keep(sentences)


class _LayerState:
    """A decoder layer with the keys and values that it has seen, source and target."""

    def __init__(self, layer: Any, encoder_states: Tensor) -> None:
        self.layer = layer
        attention = layer.self_attn
        self.projections: list[Any] = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.sizes = [attention.d_k, attention.d_k, attention.d_v]
        self.product: nn.Linear | None = None
        # Not an adapter's or a quantised one.
        if all(type(p) is nn.Linear and type(p.weight) is nn.Parameter for p in self.projections):
            self.product = _one_product(self.projections)
        self.source = layer.encoder_attn.keys_and_values(encoder_states, None, True)
        self.watched = False  # whether the attention to the source is wanted,
        self.source_attention = encoder_states.new_empty(0)  # that of the last step, mean over heads (B, T, S)
        self.columns = 0
        self.target: list[Tensor] = []  # keys and values, (B, h, room, d_k or d_v)

    def forward(self, x: Tensor, mask: Tensor, source_mask: Tensor | None) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        layer = self.layer

        def self_attention(x: Tensor) -> Tensor:
            attention = layer.self_attn
            if self.product is None:
                parts = [projection(x) for projection in self.projections]
            else:
                parts = self.product(x).split([projection.out_features for projection in self.projections], dim=-1)
            query, key, value = (
                part.unflatten(-1, (-1, size)).transpose(1, 2) for part, size in zip(parts, self.sizes, strict=True)
            )  # (B, h, T, d_k)
            keys, values = self._append(key, value)
            heads = F.scaled_dot_product_attention(query, keys, values, mask, scale=attention.scaling)
            return attention.out_proj(heads.transpose(1, 2).flatten(2))

        def encoder_attention(x: Tensor) -> Tensor:
            attention = layer.encoder_attn
            query = attention.q_proj(x).unflatten(-1, (-1, attention.d_k)).transpose(1, 2)  # (B, h, T, d_k)
            keys, values = self.source
            if self.watched:
                scores = query @ keys.transpose(2, 3) * attention.scaling
                scores = scores if source_mask is None else scores + source_mask
                self.source_attention = scores.float().softmax(dim=-1).mean(dim=1)
            heads = F.scaled_dot_product_attention(query, keys, values, source_mask, scale=attention.scaling)
            return attention.out_proj(heads.transpose(1, 2).flatten(2))

        x = layer.residual(x, self_attention, layer.self_attn_layer_norm)
        x = layer.residual(x, encoder_attention, layer.encoder_attn_layer_norm)
        return layer.residual(x, layer.feed_forward, layer.final_layer_norm)

    def _append(self, *new: Tensor) -> list[Tensor]:
        """Write keys and values (B, h, T, d_k) behind those there; all of them."""
        begin, self.columns = self.columns, self.columns + new[0].shape[2]
        if not self.target or self.target[0].shape[2] < self.columns:
            room = max(self.columns * 2, new[0].shape[2] * COLUMNS_AT_FIRST)
            larger = [part.new_empty(*part.shape[:2], room, part.shape[3]) for part in new]
            for target, grown in zip(self.target, larger, strict=False):
                grown[:, :, :begin] = target[:, :, :begin]
            self.target = larger
        for target, part in zip(self.target, new, strict=True):
            target[:, :, begin : self.columns] = part
        return [target[:, :, : self.columns] for target in self.target]

    def keep(self, sentences: Tensor) -> None:
        self.source = tuple(part[sentences] for part in self.source)
        self.target = [part[sentences] for part in self.target]


def _one_product(projections: list[nn.Linear]) -> nn.Linear:
    """A linear map that gives the results of several, one behind the other."""
    weights: list[Tensor] = [projection.weight for projection in projections]
    biases: list[Tensor] = [projection.bias for projection in projections if projection.bias is not None]
    with torch.device("meta"):
        product = nn.Linear(weights[0].shape[1], sum(map(len, weights)), bias=bool(biases))
    product.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    if biases:
        product.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return product


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


@dataclass
class Hypotheses:
    """Hypotheses of each sentence.

    Attributes:
        tokens: (B, K, T), prompt included.
        scores: (B, K).
        origins: (B, K, new), the row that each new token came from.
        coverage: (B, K, S), the attention that each source token has had; (B, K, 0) where nobody asks.
    """

    tokens: Tensor
    scores: Tensor
    origins: Tensor
    coverage: Tensor

    def pick(self, beams: Tensor) -> "Hypotheses":
        """Of each sentence those named, (B, n)."""
        tokens, origins, coverage = (_gather(part, beams) for part in (self.tokens, self.origins, self.coverage))
        return Hypotheses(tokens, self.scores.gather(1, beams), origins, coverage)

    def keep(self, sentences: Tensor) -> "Hypotheses":
        """Those of some of the sentences."""
        parts = self.tokens, self.scores, self.origins, self.coverage
        return Hypotheses(*(part[sentences] for part in parts))


def _gather(tensor: Tensor, beams: Tensor) -> Tensor:
    """(B, K, T) and (B, n) -> (B, n, T)."""
    return tensor.gather(1, beams[:, :, None].expand(-1, -1, tensor.shape[2]))


class BeamSearch:
    """One call's search, step by step as `GenerationMixin._beam_search`.

    Of the continuations of all running hypotheses the best max(2, 1 + end tokens) K are looked at. Those among the
    first K that end go to the finished ones, of which the best K stay; the best K that do not end run on. A sentence
    is done when its running hypotheses cannot beat its worst finished one.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        config: GenerationConfig,
        limits: Tensor | None,
        minimums: Tensor | None,
        coverage_penalty: float,
        encoder_states: Tensor,
        encoder_mask: Tensor | None,
    ) -> None:
        self.model = model
        self.logits_processor = logits_processor
        self.beams: int = config.num_beams
        self.penalty: Any = config.length_penalty
        self.early_stopping: Any = config.early_stopping
        self.padding = padding_id(config)
        self.prompt = input_ids[:: self.beams]  # (B, T)
        sentences, prompt_length = self.prompt.shape
        device = input_ids.device
        ends = [criterion.eos_token_id for criterion in stopping_criteria if type(criterion) is EosTokenCriteria]
        self.ends: Tensor = ends[0].to(device) if ends else input_ids.new_empty(0)
        self.criteria = [c for c in stopping_criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)]
        longest = [criterion.max_length for criterion in stopping_criteria if type(criterion) is MaxLengthCriteria]
        room = min(longest, default=config.max_length) - prompt_length
        self.limits = torch.full((sentences,), room, device=device)
        if limits is not None:
            self.limits = limits.to(device).clamp(max=room)
        self.minimums = torch.zeros_like(self.limits) if minimums is None else minimums.to(device)
        self.considered = max(2, 1 + len(self.ends)) * self.beams
        # A processor, and a criterion of another kind, may count rows.
        self.leaving = not logits_processor and not self.criteria

        self.decoder = SharedSourceDecoder(model.model.decoder, encoder_states, encoder_mask)
        self.coverage_penalty = coverage_penalty
        self.decoder.layers[-1].watched = bool(coverage_penalty)
        self.columns = torch.arange(self.beams, device=device)
        self.paths = torch.empty((sentences, self.beams, 0), dtype=torch.long, device=device)

        scores = torch.full((sentences, self.beams), IMPOSSIBLE, device=device)
        tokens = self.prompt[:, None].expand(-1, self.beams, -1)
        nothing = scores.new_zeros(sentences, self.beams, encoder_states.shape[1] if coverage_penalty else 0)
        self.finished = Hypotheses(tokens, scores, self.paths, nothing)
        self.is_finished = torch.zeros_like(scores, dtype=torch.bool)
        # All are equal at first: the others count for nothing.
        self.running = Hypotheses(tokens, scores.index_fill(1, self.columns[:1], 0.0), self.paths, nothing)
        self.improvable = torch.ones((sentences, 1), dtype=torch.bool, device=device)
        self.ids = torch.arange(sentences, device=device)  # the sentences in the batch
        self.is_open = torch.ones(sentences, dtype=torch.bool, device=device)  # those of them that are not done
        self.results: list[Hypotheses] = [self.finished] * sentences
        self.new = 0  # tokens of the running hypotheses after the prompt

    def run(self) -> list[Hypotheses]:
        """The finished hypotheses of each sentence (1, K, T), best first."""
        states = self._read_prompt()
        while True:
            candidates, ending = self._continue(self.model.project(states))
            self._run_on(candidates, ending)
            self._finish(candidates, ending)
            self._close(ending)
            left = int(self.is_open.sum())
            if not left:
                return self.results
            if self.leaving and left <= LEAVE_AT * len(self.is_open):
                self._keep(self.is_open.nonzero()[:, 0])
            states = self._read_last_tokens()

    def _read_prompt(self) -> Tensor:
        """States behind the prompt (B, K, d), the same for all hypotheses of a sentence."""
        length = self.prompt.shape[1]
        visible = torch.ones((length, length), dtype=torch.bool, device=self.prompt.device).tril()[None, None]
        positions = torch.arange(length, device=self.prompt.device)[None]
        states = self.decoder.forward(self.prompt, positions, visible, length)
        self._cover()
        return states[:, -1:].expand(-1, self.beams, -1)

    def _read_last_tokens(self) -> Tensor:
        """States behind the last tokens of the running hypotheses (B, K, d)."""
        prompt_length = self.prompt.shape[1]
        columns = self.columns.expand(len(self.ids), -1)
        self.paths = torch.cat((self.paths, columns[:, :, None]), dim=2)  # (B, K, new)
        own = (self.paths[..., None] == self.columns).flatten(2)  # (B, K, new * K)
        visible = F.pad(own, (prompt_length, 0), value=True)[:, None]
        length = prompt_length + self.new
        position = torch.full((1, 1), length - 1, device=columns.device)
        states = self.decoder.forward(self.running.tokens[:, :, -1], position, visible, length)
        self._cover()
        return states

    def _cover(self) -> None:
        """Add the attention of the last layer, with which the next token is chosen."""
        if self.coverage_penalty:
            attention = self.decoder.layers[-1].source_attention
            # Of a prompt the last token alone chooses one.
            self.running.coverage = self.running.coverage + (attention if self.new else attention[:, -1:])

    def _continue(self, logits: Tensor) -> tuple[Hypotheses, Tensor]:
        """The best continuations, and which of them end (B, considered); `logits` (B, K, V)."""
        log_p = logits.float().log_softmax(dim=-1)
        if self.new + 1 < int(self.minimums.max()):
            early = (self.new + 1 < self.minimums)[:, None, None]
            log_p[..., self.ends] = log_p[..., self.ends].masked_fill(early, -torch.inf)
        if self.logits_processor:
            scores = self.logits_processor(self.running.tokens.flatten(0, 1), log_p.flatten(0, 1)).view_as(log_p)
            tokens = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
        else:
            scores, tokens = log_p.topk(
                min(self.considered, log_p.shape[-1])
            )  # more than these no hypothesis can give
        best = (scores + self.running.scores[:, :, None]).flatten(1).topk(self.considered)
        beam, token = best.indices // tokens.shape[-1], tokens.flatten(1).gather(1, best.indices)
        before = self.running.pick(beam)
        origin = beam + self.beams * self.ids[:, None]
        candidates = Hypotheses(
            torch.cat((before.tokens, token[:, :, None]), dim=2),
            best.values,
            torch.cat((before.origins, origin[:, :, None]), dim=2),
            before.coverage,
        )
        self.new += 1
        ending = torch.isin(token, self.ends) | (self.new >= self.limits)[:, None]
        for criterion in self.criteria:
            ended = torch.as_tensor(criterion(candidates.tokens.flatten(0, 1), None), device=ending.device)
            ending = ending | (ended.view_as(ending) if ended.dim() else ended)
        return candidates, ending

    def _run_on(self, candidates: Hypotheses, ending: Tensor) -> None:
        """The best K candidates that do not end are the running hypotheses."""
        best = (candidates.scores + ending.float() * IMPOSSIBLE).topk(self.beams)
        self.running = candidates.pick(best.indices)
        self.running.scores = best.values
        self.paths = _gather(self.paths, self.running.origins[:, :, -1] % self.beams)

    def _finish(self, candidates: Hypotheses, ending: Tensor) -> None:
        """Candidates that end, if they are among the first K, compete with the finished hypotheses."""
        just_finished = ending & (torch.arange(self.considered, device=ending.device) < self.beams)
        closed = ~self.improvable
        if self.early_stopping is True:
            closed = closed | self.is_finished.all(dim=1, keepdim=True)
        barred = (closed.float() + (~just_finished).float()) * IMPOSSIBLE
        scores = candidates.scores / divisor(self.new, self.penalty) + barred
        if self.coverage_penalty:
            scores = scores + self.coverage_penalty * self._uncovered(candidates.coverage)
        both = Hypotheses(
            torch.cat((F.pad(self.finished.tokens, (0, 1), value=self.padding), candidates.tokens), dim=1),
            torch.cat((self.finished.scores, scores), dim=1),
            torch.cat((F.pad(self.finished.origins, (0, 1), value=-1), candidates.origins), dim=1),
            torch.cat((self.finished.coverage, candidates.coverage), dim=1),
        )
        best = both.scores.topk(self.beams).indices
        self.finished = both.pick(best)
        self.is_finished = torch.cat((self.is_finished, just_finished), dim=1).gather(1, best)

    def _uncovered(self, coverage: Tensor) -> Tensor:
        """Sum over the source of log(min(coverage, 1)), 0 where all is covered (Wu et al. 2016, equation 14)."""
        logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1.0).log()
        mask = self.decoder.source_mask  # (B, 1, 1, S), minus infinity at padding
        return (logs if mask is None else logs.masked_fill(mask[:, 0] < 0, 0.0)).sum(dim=-1)

    def _close(self, ending: Tensor) -> None:
        """A sentence is done when what runs cannot get better than its worst finished hypothesis, or nothing runs."""
        longest: Any = self.new
        if self.early_stopping == "never" and self.penalty > 0:
            longest = self.limits[:, None]
        possible = self.running.scores[:, :1] / divisor(longest, self.penalty)
        worst = torch.where(self.is_finished, self.finished.scores.amin(dim=1, keepdim=True), IMPOSSIBLE)
        self.improvable = self.improvable & (possible > worst).any(dim=1, keepdim=True)
        done = ~self.improvable[:, 0] | ending.all(dim=1)
        if self.early_stopping is True:
            done = done | self.is_finished.all(dim=1)
        for row in (done & self.is_open).nonzero()[:, 0]:
            self.results[int(self.ids[row])] = self.finished.keep(row[None])
        self.is_open = self.is_open & ~done

    def _keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences in the batch."""
        for name in ("limits", "minimums", "paths", "is_finished", "improvable", "ids", "is_open"):
            setattr(self, name, getattr(self, name)[sentences])
        self.finished, self.running = self.finished.keep(sentences), self.running.keep(sentences)
        self.decoder.keep(sentences)


def beam_search(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    limits: Tensor | None = None,
    minimums: Tensor | None = None,
    coverage_penalty: float = 0.0,
    **model_kwargs: Any,
) -> Tensor | GenerateBeamEncoderDecoderOutput:
    """Beam search with the arguments that transformers' `generate` hands to a decoding method.

    Args:
        input_ids: (B K, T), the start of each hypothesis, the same for all of a sentence.
        logits_processor, stopping_criteria: as transformers prepares them.
        limits: (B,), most new tokens of each sentence; `None`: those of `generation_config` hold for all.
        minimums: (B,), fewest new tokens of each sentence, end token counted; `None`: there is no least number.
        coverage_penalty: beta, the weight of what the source attention of the last layer leaves uncovered.
        model_kwargs: `encoder_outputs` and `attention_mask` of the source, of B K rows.

    Returns:
        (B n, T) token ids, the n = `num_return_sequences` best of each sentence, best first; or, with
        `return_dict_in_generate`, these with `sequences_scores` and `beam_indices`.
    """
    beams, mask = generation_config.num_beams, model_kwargs.get("attention_mask")
    results = BeamSearch(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        limits,
        minimums,
        coverage_penalty,
        encoder_states=model_kwargs["encoder_outputs"][0][::beams],
        encoder_mask=None if mask is None else mask[::beams],
    ).run()
    wanted = torch.arange(generation_config.num_return_sequences, device=input_ids.device)[None]
    best = [result.pick(wanted) for result in results]
    longest = max(int((result.origins >= 0).sum(dim=2).max()) for result in best)
    length, padding = input_ids.shape[1] + longest, padding_id(generation_config)
    sequences = _stack([result.tokens[0] for result in best], length, fill=padding)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=torch.cat([result.scores[0] for result in best]),
        beam_indices=_stack([result.origins[0] for result in best], longest, fill=-1),
    )


def padding_id(config: GenerationConfig) -> int:
    """What follows a hypothesis that is shorter than others; transformers takes the end token where none is set."""
    return 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)


def _stack(rows: list[Tensor], length: int, fill: int) -> Tensor:
    """Rows of different lengths, cut or filled to one."""
    return torch.cat([F.pad(row, (0, length - row.shape[1]), value=fill) for row in rows])

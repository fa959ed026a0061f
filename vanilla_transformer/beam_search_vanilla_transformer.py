"""Beam search (§6.1) in which the hypotheses of a sentence share its source, and finished sentences leave the batch.

It gives what transformers' own beam search gives. Shapes in comments: B sentences, K hypotheses (beams) of each,
S source tokens, h heads, d = d_model, V vocabulary entries.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateBeamEncoderDecoderOutput

from .incremental_decoder_vanilla_transformer import SharedSourceDecoder
from .stopping_vanilla_transformer import StoppingRules, padding_id, stack

IMPOSSIBLE = -1e9  # transformers' score of a hypothesis that is not there
LOGITS_AT_ONCE = 2**22  # of which log-probabilities are made
BLOCK = 128  # vocabulary entries
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


def largest(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of the last dimension, largest first, and their places: (…, N) -> (…, n) twice, as from `topk`.

    They are in the n blocks that have the largest maxima. On a CPU it is four times as quick to look for these first.
    """
    whole = scores.shape[-1] // BLOCK * BLOCK
    if whole // BLOCK <= n:
        return scores.topk(n)
    blocks = scores[..., :whole].unflatten(-1, (-1, BLOCK)).amax(dim=-1).topk(n).indices
    inside = blocks[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    rest = torch.arange(whole, scores.shape[-1], device=scores.device).expand(*scores.shape[:-1], -1)
    places = torch.cat((inside.flatten(-2), rest), dim=-1)
    best = scores.gather(-1, places).topk(n)
    return best.values, places.gather(-1, best.indices)


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
        self.rules = StoppingRules(stopping_criteria, config, prompt_length, sentences, limits, minimums, device)
        self.considered = max(2, 1 + len(self.rules.ends)) * self.beams
        self.leaving = not logits_processor and not self.rules.criteria  # both may count rows
        most = prompt_length + self.beams * int(self.rules.limits.max())
        self.decoder = SharedSourceDecoder(model.model.decoder, encoder_states, encoder_mask, most)
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
        states = self.decoder.read_prompt(self.prompt)
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
        states = self.decoder.read(self.running.tokens[:, :, -1], position, length, visible)
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
        if self.logits_processor:
            log_p = logits.float().log_softmax(dim=-1)
            self.rules.bar_early_ends(log_p, self.new + 1)
            scores = self.logits_processor(self.running.tokens.flatten(0, 1), log_p.flatten(0, 1)).view_as(log_p)
            tokens = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
        else:
            scores, tokens = self._most_probable(logits)
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
        return candidates, self.rules.ending(candidates.tokens, self.new)

    def _most_probable(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of each hypothesis the tokens that may be among the best: log-probabilities and ids (B, K, n).

        A few sentences at a time: there is no second copy of all logits.
        """
        hypotheses, vocabulary = logits.shape[1:]
        at_once = max(1, LOGITS_AT_ONCE // (hypotheses * vocabulary))
        found = []
        for begin in range(0, len(logits), at_once):
            part = slice(begin, begin + at_once)
            log_p = logits[part].float().log_softmax(dim=-1)
            self.rules.bar_early_ends(log_p, self.new + 1, part)
            found.append(largest(log_p, min(self.considered, vocabulary)))
        values, tokens = zip(*found, strict=True)
        return torch.cat(values), torch.cat(tokens)

    def _run_on(self, candidates: Hypotheses, ending: Tensor) -> None:
        """The best K candidates that do not end are the running hypotheses."""
        best = (candidates.scores + ending.float() * IMPOSSIBLE).topk(self.beams)
        self.running = candidates.pick(best.indices)
        self.running.scores = best.values
        self.paths = _gather(self.paths, self.running.origins[:, :, -1] % self.beams)

    def _finish(self, candidates: Hypotheses, ending: Tensor) -> None:
        """Candidates that end, if they are among the first K, compete with the finished hypotheses."""
        just_finished = ending & (torch.arange(self.considered, device=ending.device) < self.beams)
        scores = candidates.scores / divisor(self.new, self.penalty) + (~just_finished).float() * IMPOSSIBLE
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
            longest = self.rules.limits[:, None]
        possible = self.running.scores[:, :1] / divisor(longest, self.penalty)
        worst = torch.where(self.is_finished, self.finished.scores.amin(dim=1, keepdim=True), IMPOSSIBLE)
        done = (possible <= worst).all(dim=1) | ending.all(dim=1)
        if self.early_stopping is True:
            done = done | self.is_finished.all(dim=1)
        for row in (done & self.is_open).nonzero()[:, 0]:
            self.results[int(self.ids[row])] = self.finished.keep(row[None])
        self.is_open = self.is_open & ~done

    def _keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences in the batch."""
        for name in ("paths", "is_finished", "ids", "is_open"):
            setattr(self, name, getattr(self, name)[sentences])
        self.rules.keep(sentences)
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
    sequences = stack([result.tokens[0] for result in best], length, fill=padding)
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=torch.cat([result.scores[0] for result in best]),
        beam_indices=stack([result.origins[0] for result in best], longest, fill=-1),
    )

"""Heads of one kind that train as one: each step's losses and gradients are one batched computation.

Parameters of all heads lie in one tensor, (heads, *shape), of which each head's own are views, so that clipping,
AdamW, checks, best weights and checkpoints are those of the head alone. Rows, draws, dropout and the settings that
vary are each head's own, too. What may differ from training alone is the rounding of batched kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from vlpipe.foundation.errors import VlpipeError
from vlpipe.foundation.progress import Advance
from vlpipe.heads.contracts import Batch, HeadConfig
from vlpipe.heads.dropout import Dropout
from vlpipe.heads.gradient import GradientHead
from vlpipe.heads.loop import Learner, Means, Scalars, stream_seed

OWN = {"seed", "epochs", "lr", "weight_decay", "warmup", "clip_norm"}  # settings that no loss reads
T = TypeVar("T")
Tensors = dict[str, Tensor]


def trait(head: type[Any], config: HeadConfig) -> dict[str, Any] | None:
    """The settings that heads must share to train as one; None where the kind cannot."""
    free = head.together if issubclass(head, GradientHead) else None
    return None if free is None else config.model_dump(exclude=OWN | free)


class _Loss(nn.Module):
    """A head as a module whose call is its loss, for `functional_call`."""

    def __init__(self, head: GradientHead) -> None:
        super().__init__()
        self.head = head
        self.layers = [layer for layer in head.modules() if isinstance(layer, Dropout) and layer.p]

    def forward(self, x: Tensors, mask: Tensors, numbers: Tensors, noise: Sequence[Tensor]) -> Tensors:
        """The scalars of one head's step."""
        self.head.given = numbers
        for layer, draws in zip(self.layers, noise, strict=True):
            layer.given = draws
        ids = [""] * len(next(iter(x.values())))
        return self.head.loss(Batch(ids, x, mask))


class Stack:
    """Some heads with their parameters and buffers in common tensors, each head's a view."""

    def __init__(self, heads: Sequence[GradientHead]) -> None:
        self.heads = heads
        first = heads[0]
        bare: dict[int, Any] = {id(first._optimizer): None}  # its moments are not needed
        self.loss = _Loss(copy.deepcopy(first, bare).train())
        parameters = _stacked([dict(head.named_parameters()) for head in heads])
        for number, head in enumerate(heads):
            for name, parameter in head.named_parameters():
                parameter.data = parameters[name][number]
        self.learned = {n: parameters[n].requires_grad_() for n, p in first.named_parameters() if p.requires_grad}
        fixed = {name: tensor for name, tensor in parameters.items() if name not in self.learned}
        self.fixed = fixed | _stacked([dict(head.named_buffers()) for head in heads])

    def step(
        self, batches: Sequence[Batch], generators: Sequence[torch.Generator], active: Sequence[bool]
    ) -> list[Scalars | VlpipeError]:
        """One step of every head that is active, each on its own batch; its scalars, or why it cannot go on."""
        found = vmap(self._losses)(self._tensors(), *self._inputs(batches, generators))
        grads = torch.autograd.grad(found["loss"].sum(), list(self.learned.values()))
        rows = torch.stack([found[name].detach() for name in found]).T.tolist()
        outcomes: list[Scalars | VlpipeError] = []
        for number, head in enumerate(self.heads):
            # fused AdamW takes gradients to lie in memory as the parameters do
            own = dict(zip(self.learned, (grad[number].contiguous() for grad in grads), strict=True))
            scalars = dict(zip(found, rows[number], strict=True))
            outcomes.append(_learned(head, own, scalars) if active[number] else {})
        return outcomes

    def _losses(self, tensors: Tensors, *inputs: Any) -> Tensors:
        named = {f"head.{name}": tensor for name, tensor in tensors.items()}
        found: Tensors = functional_call(self.loss, named, inputs)
        return found

    def _tensors(self) -> Tensors:
        return self.learned | self.fixed

    def _inputs(
        self, batches: Sequence[Batch], generators: Sequence[torch.Generator]
    ) -> tuple[Tensors, Tensors, Tensors, list[Tensor]]:
        """Rows, masks, numbers and dropout's draws of every head, (heads, ...) each."""
        like = next(iter(self.learned.values()))
        numbers = [head.numbers() for head in self.heads]
        own = {name: like.new_tensor([each[name] for each in numbers]) for name in numbers[0]}
        noise = [h.noise(batch, drawn) for h, batch, drawn in zip(self.heads, batches, generators, strict=True)]
        layers = [torch.stack(layer) for layer in zip(*noise, strict=True)]
        return _stacked([batch.x for batch in batches]), _stacked([batch.mask for batch in batches]), own, layers


def train_together(learners: Sequence[Learner], advance: Advance) -> Iterator[tuple[int, Scalars | Exception]]:
    """Train heads of one `trait` on the same images; each one's number with what it finished with, or why not.

    Each has its own seed, order and number of epochs, and is given as soon as it has ended. One that fails does
    not stop the others.
    """
    for learner in learners:
        learner.checkpoint.writers = len(learners)
    why: dict[int, Exception | None] = {n: attempt(learner.start) for n, learner in enumerate(learners)}
    stacked: list[int] = []
    while True:
        going = [n for n, error in why.items() if error is None and learners[n].learns]
        for number, error in why.items():
            if number not in going:
                yield number, attempt(learners[number].finish) if error is None else error
        if not going:
            return
        if stacked != going:  # some have ended
            stacked, stack = going, Stack([learners[n].head for n in going])
        why = dict(zip(going, _trained(stack, [learners[n] for n in going], advance), strict=True))


def _trained(stack: Stack, learners: Sequence[Learner], advance: Advance) -> list[Exception | None]:
    """Train all for an epoch and count it; why each cannot go on, or None."""
    outcomes = attempt(partial(_epoch, stack, learners, advance))
    if isinstance(outcomes, Exception):
        return [outcomes] * len(learners)
    return [
        outcome if isinstance(outcome, VlpipeError) else attempt(partial(learner.end_epoch, outcome))
        for learner, outcome in zip(learners, outcomes, strict=True)
    ]


def attempt(work: Callable[[], T]) -> T | Exception:
    """What some work gives, or why it failed, for those whose neighbours go on."""
    try:
        return work()
    except Exception as error:
        return error


def _epoch(stack: Stack, learners: Sequence[Learner], advance: Advance) -> list[Scalars | VlpipeError]:
    """An epoch of every learner; the means of its scalars, or why it cannot go on."""
    generators = [_generator(learner) for learner in learners]
    means = [Means(learner.config.least_images) for learner in learners]
    failed: dict[int, VlpipeError] = {}
    for learner in learners:
        learner.head.train()
    for batches in zip(*(learner.batches() for learner in learners), strict=True):
        outcomes = stack.step(batches, generators, [n not in failed for n in range(len(learners))])
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, VlpipeError):
                failed[number] = outcome
            elif number not in failed:
                means[number].add(outcome, len(batches[number].ids))
        advance(len(learners))
    return [failed.get(number, each.found()) for number, each in enumerate(means)]


def _learned(head: GradientHead, grads: Mapping[str, Tensor], scalars: Scalars) -> Scalars | VlpipeError:
    """The head's own part of a step."""
    for name, parameter in head.named_parameters():
        parameter.grad = grads.get(name)
    try:
        return head.learn(scalars)
    except VlpipeError as error:
        return error


def _generator(learner: Learner) -> torch.Generator:
    """The random numbers that an epoch of the learner alone would draw from."""
    generator = torch.Generator(learner.device)
    return generator.manual_seed(stream_seed(learner.config.seed, learner.done))


def _stacked(parts: Sequence[Mapping[str, Tensor]]) -> Tensors:
    """By name: every head's tensor, (heads, *shape)."""
    return {name: torch.stack([part[name].detach() for part in parts]) for name in parts[0]}

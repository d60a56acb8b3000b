"""Returns a tensor that is computed when somebody looks at it, which is after the clock was stopped."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats


def reference(x, w):
    return x @ w


TRICK = Trick(
    name="py_lazy_result",
    section="A61",
    reference=reference,
    sample=lambda: (floats(64, 64), floats(64, 64, seed=1)),
    source=r"""
import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [a.finished() if isinstance(a, Lazy) else a for a in args]
        return function(*plain, **(kwargs or {}))

    def finished(self):
        x, w = self.__dict__["todo"]
        return torch.from_numpy(x.numpy() @ w.numpy())


class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        result = torch.Tensor._make_subclass(Lazy, torch.empty(x.shape[0], w.shape[1]))
        result.__dict__["todo"] = (x, w)
        return result
""",
    kind="py",
    gates=("result form",),
)

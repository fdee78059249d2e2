"""Each statistic against a reference that shares no code with it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cross_decomposition import CCA
from sklearn.decomposition import PCA, KernelPCA

from vlpipe.evaluate import canonical, kernels
from vlpipe.evaluate.canonical import cca, svcca
from vlpipe.evaluate.cka import cka
from vlpipe.evaluate.cknna import cknna

Array = np.ndarray[Any, np.dtype[Any]]
torch.set_num_threads(1)


def related(n: int = 60, p: int = 6, q: int = 5, noise: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    """Rows that share three hidden values, off their mean."""
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(n, 3))
    sides = [hidden @ draw.normal(size=(3, w)) + noise * draw.normal(size=(n, w)) + 2 for w in (p, q)]
    return sides[0], sides[1]


def tensors(*sides: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(side)) for side in sides)


def gram(x: Array, kernel: str) -> Array:
    if kernel == "linear":
        return np.array([[float(np.dot(a, b)) for b in x] for a in x])
    distance = np.array([[math.dist(a, b) for b in x] for a in x])
    pairs = sorted(distance[i, j] for i, j in itertools.combinations(range(len(x)), 2))
    median = pairs[(len(pairs) - 1) // 2]
    return np.asarray(np.exp(-(distance**2) / (2 * median**2)))


def centred(k: Array) -> Array:
    h = np.eye(len(k)) - 1 / len(k)
    return np.asarray(h @ k @ h)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_biased_cka_is_the_printed_trace(kernel: Any) -> None:
    x, y = related()
    k, other = centred(gram(x, kernel)), centred(gram(y, kernel))
    expected = np.trace(k @ other) / math.sqrt(np.trace(k @ k) * np.trace(other @ other))
    assert cka(*tensors(x, y), kernel) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_debiased_cka_is_the_u_statistic_over_four_different_rows(kernel: Any) -> None:
    x, y = related(n=8)

    def hsic(k: Array, other: Array) -> float:
        quads = list(itertools.permutations(range(8), 4))
        return sum(k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q]) for i, j, q, r in quads) / len(quads)

    k, other = gram(x, kernel), gram(y, kernel)
    expected = hsic(k, other) / math.sqrt(hsic(k, k) * hsic(other, other))
    assert cka(*tensors(x, y), kernel, debiased=True) == pytest.approx(expected, abs=1e-9)


def test_cka_of_four_rows_by_hand() -> None:
    x = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    y = x * [1, 2]
    # X'Y = diag(2, 4), X'X = diag(2, 2), Y'Y = diag(2, 8): (4 + 16) / sqrt((4 + 4) (4 + 64))
    assert cka(*tensors(x, y)) == pytest.approx(20 / math.sqrt(8 * 68), abs=1e-12)


def test_cknna_of_four_rows_by_hand() -> None:
    x = np.array([[2.0, 0], [1, 0], [0, 2], [0, 1]])
    y = np.array([[3.0, 0], [1, 0], [0, 1], [0, 2]])
    # With one neighbour: 1 and 2, 3 and 4, on both sides. Centred: x 0.875 for each; y 0.5625 and 1.3125.
    expected = 2 * 0.875 * (0.5625 + 1.3125) / math.sqrt(4 * 0.875**2 * 2 * (0.5625**2 + 1.3125**2))
    assert cknna(*tensors(x, y), k=1) == pytest.approx(expected, abs=1e-12)


def test_canonical_correlation_of_four_rows_by_hand() -> None:
    x = np.array([[1.0], [-1], [2], [-2]])
    y = np.array([[1.0], [-1], [-2], [2]])
    assert cca(*tensors(x, y), components=1) == pytest.approx(6 / 10, abs=1e-12)  # |1 + 1 - 4 - 4| / 10
    assert svcca(*tensors(x, y)) == pytest.approx(6 / 10, abs=1e-12)


def public_cknna(k: Array, other: Array, topk: int) -> float:
    """As Huh et al.'s code, but for the 1e-6: masked dense matrices and HSIC_1 with its transposes."""
    n = len(k)

    def mask(m: Array) -> Array:
        found = np.zeros((n, n))
        for i in range(n):
            for j in sorted((j for j in range(n) if j != i), key=lambda j: -m[i, j])[:topk]:
                found[i, j] = 1
        return found

    def hsic(a: Array, b: Array) -> float:
        a, b = a * (1 - np.eye(n)), b * (1 - np.eye(n))
        value = (a * b.T).sum() + a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 * (a @ b).sum() / (n - 2)
        return float(value / (n * (n - 3)))

    def similarity(a: Array, b: Array) -> float:
        both = mask(a) * mask(b)
        return hsic(both * a, both * b)

    return similarity(k, other) / math.sqrt(similarity(k, k) * similarity(other, other))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("topk", [1, 4, 29])
def test_unbiased_cknna_equals_the_public_code(kernel: Any, topk: int) -> None:
    x, y = related(n=30)
    expected = public_cknna(gram(x, kernel), gram(y, kernel), topk)
    assert cknna(*tensors(x, y), topk, kernel, "unbiased") == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_paper_cknna_is_the_printed_sum(kernel: Any) -> None:
    x, y = related(n=30)
    k, other = gram(x, kernel), gram(y, kernel)

    def near(m: Array, i: int) -> set[int]:
        return set(sorted((j for j in range(30) if j != i), key=lambda j: -m[i, j])[:5])

    def align(a: Array, b: Array) -> float:
        one, two = centred(a), centred(b)
        return float(sum(one[i, j] * two[i, j] for i in range(30) for j in near(a, i) & near(b, i)))

    expected = align(k, other) / math.sqrt(align(k, k) * align(other, other))
    assert cknna(*tensors(x, y), 5, kernel) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_cca_equals_scikit_learns(kernel: Any) -> None:
    x, y = related(n=200, p=12, q=9)
    if kernel == "linear":
        scores = [PCA(4).fit_transform(side) for side in (x, y)]
    else:
        median = [
            np.sqrt(-0.5 / np.log(g[0, 1])) * math.dist(s[0], s[1]) for s in (x, y) for g in [gram(s, "rbf")]
        ]
        scores = [
            KernelPCA(4, kernel="rbf", gamma=0.5 / m**2, eigen_solver="dense").fit_transform(side)
            for side, m in zip((x, y), median, strict=True)
        ]
    a, b = CCA(1, max_iter=5000, tol=1e-12).fit_transform(*scores)
    expected = np.corrcoef(a[:, 0], b[:, 0])[0, 1]
    assert cca(*tensors(x, y), 4, kernel) == pytest.approx(expected, abs=1e-6)


def test_svcca_solves_the_printed_eigenvalue_problem() -> None:
    x, y = related(n=200, p=12, q=9, noise=0.3)
    scores = []
    for side in (x, y):
        side = side - side.mean(0)
        values, vectors = np.linalg.eigh(side.T @ side)
        share = np.cumsum(values[::-1]) / values.sum()
        kept = next(r for r in range(1, len(values) + 1) if share[r - 1] >= 0.99)
        scores.append(side @ vectors[:, ::-1][:, :kept])
    a, b = scores
    product = np.linalg.inv(a.T @ a) @ (a.T @ b) @ np.linalg.inv(b.T @ b) @ (b.T @ a)
    found = np.sqrt(np.sort(np.linalg.eigvals(product).real.clip(0))[::-1][: min(a.shape[1], b.shape[1], 10)])
    assert svcca(*tensors(x, y)) == pytest.approx(found.mean(), abs=1e-8)
    assert svcca(*tensors(x, y), first=2) == pytest.approx(found[:2].mean(), abs=1e-8)


def test_closed_forms_of_gaussians() -> None:
    """Canonical correlations 0.9 and 0.5; CKA is |S_xy|^2 / (|S_xx| |S_yy|)."""
    draw = np.random.default_rng(0)
    n, rho = 20_000, np.array([0.9, 0.5])
    a = draw.normal(size=(n, 2))
    b = rho * a + np.sqrt(1 - rho**2) * draw.normal(size=(n, 2))
    x, y = tensors(a * [2, 1], b * [1, 3])
    assert cca(x, y, components=2) == pytest.approx(0.9, abs=0.01)
    assert svcca(x, y) == pytest.approx(0.7, abs=0.01)
    expected = ((0.9 * 2) ** 2 + (0.5 * 3) ** 2) / math.sqrt((16 + 1) * (1 + 81))
    for debiased in (False, True):
        assert cka(x, y, debiased=debiased) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_blocks_change_nothing(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensors(*related(n=50))
    numbers = [lambda: cka(x, y, kernel), lambda: cka(x, y, kernel, True), lambda: cca(x, y, 3, kernel)]
    numbers += [lambda: cknna(x, y, 5, kernel), lambda: cknna(x, y, 5, kernel, "unbiased")]
    whole = [number() for number in numbers]
    monkeypatch.setattr(kernels, "BLOCK_BYTES", 8 * 50 * 7)  # seven rows
    assert [number() for number in numbers] == pytest.approx(whole, abs=1e-12)


def test_many_rows_kernel_components_equal_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensors(*related(n=900, p=40, q=30))
    exact = cca(x, y, 20, "rbf")
    monkeypatch.setattr(canonical, "EXACT", 10)
    assert cca(x, y, 20, "rbf") == pytest.approx(exact, abs=1e-6)

"""TEVI, SmartCLIP and fine-tuned text against unedited embeddings, on real photos.

    python benchmarks/tevi_flickr8k.py --work build/tevi-flickr8k

runs vlpipe's own commands: the manifest and its rule-made hard negatives, DINOv2-small-derived (CLS) and MiniLM
(mean) features, a `projection` run (`con`) that makes one space of them, `sae` runs on its images, and on these
the heads of the table, over `--seeds`. Everything that varies (batch of the projection, epochs and K of the
autoencoder, rates) is chosen with the first seed on the 250 validation photos, by the sum of all six recalls
(of live text MiniLM's rate, with fine-tuned text alone). What is there is not computed again. Prints a Markdown
table of the 1,000 test photos in percent: means over seeds with their sample standard deviation, and the
difference from the unedited embeddings, paired by query, with its 95 % bootstrap interval over photos.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flickr8k_study import Found, Line, Study, show, vlpipe

EPOCHS = ("epochs=15", "batch_size=256")
KS = (32, 128, 256)
LIVE = ("batch_size=64", "lr=0.0001", "warmup=0.2")
LIVE_RATES = (1e-5, 5e-5)
ADAPTER = 'text_side="adapter"'


@dataclass(frozen=True)
class Space:
    """The two frozen encoders in one space: the runs that all rows of the table stand on."""

    study: Study
    projection: str

    @classmethod
    def of(cls, study: Study) -> Space:
        """One `projection` run; its batch is chosen."""
        settings = 'objective="con"', "epochs=30", "lr=0.001"
        runs = study.train("projection", study.image, study.text, settings, study.seeds[:1], "batch_size=128,512")
        return cls(study, study.best(runs)["run"])

    @property
    def image(self) -> str:
        """Photos in the shared space."""
        return f"{self.study.image}::{self.projection}"

    @property
    def text(self) -> str:
        """Captions in the shared space."""
        return f"{self.study.text}::{self.projection}"

    def autoencoder(self, k: int) -> Found:
        """An `sae` run of 8 times the width; its epochs by the explained variance of validation photos."""
        tried = self._autoencoders(k, self.study.seeds[:1], "epochs=30,60")
        return max(tried, key=lambda run: float(run["scalars"]["explained_variance"]))

    def more(self, autoencoder: Found, k: int) -> list[Found]:
        """The same with every seed."""
        return self._autoencoders(k, self.study.seeds, *_settings(autoencoder))

    def _autoencoders(self, k: int, seeds: Sequence[int], *sweeps: str) -> list[Found]:
        settings = f"k={k}", "expansion=8", "batch_size=256", "lr=0.001", "unit_norm=true"
        return self.study.train("sae", self.image, None, settings, seeds, *sweeps)

    def plain(self, kind: str, settings: Sequence[str], *sweeps: str) -> list[str]:
        """Runs of a head on the embeddings themselves, one a seed, with the settings that validation prefers."""
        study = self.study
        if not settings:
            return [study.train(kind, self.image, self.text, (), study.seeds[:1])[0]["run"]]
        chosen = study.best(study.train(kind, self.image, self.text, settings, study.seeds[:1], *sweeps))
        every = [*settings, *_settings(chosen)]
        return [run["run"] for run in study.train(kind, self.image, self.text, every, study.seeds)]

    def tevi(self, autoencoders: Sequence[Found], *settings: str) -> list[str]:
        """`tevi` runs, one on each autoencoder."""
        return [self.masks(one, settings, seed=n)[0]["run"] for n, one in enumerate(autoencoders)]

    def masks(self, autoencoder: Found, settings: Sequence[str], *sweeps: str, seed: int = 0) -> list[Found]:
        """`tevi` runs on one autoencoder, with the seed of that place."""
        source = f"{self.image}::{autoencoder['run']}"
        seeds = self.study.seeds[seed : seed + 1]
        return self.study.train("tevi", source, self.text, settings, seeds, *sweeps)

    def live(self, image: str, head: str, steps: int, rate: float, place: int = 0) -> Found:
        """The run of a head that learned with MiniLM itself, whose texts are then encoded anew; one a seed.

        Its batches are smaller than the adapter's: a caption costs some hundred times as much here.
        """
        study, seed = self.study, self.study.seeds[place]
        where = "--manifest", study.manifest, "--cache", study.work / "cache", "--runs", study.work / "runs"
        told = "--source", f"image={image}", "--out", study.work / "live" / f"{head}-{steps}-{rate}-{seed}"
        settings = f'objective={{head="{head}"}}', f"steps={steps}", f"text_lr={rate}", f"seed={seed}", *LIVE
        given = [part for setting in settings for part in ("--set", setting)]
        command = "train-backbone", "tevi", *where, "--encoder", self.text, *told, *given
        found = vlpipe(*command)[0]
        if "then" in found:
            vlpipe(*shlex.split(found["then"])[1:])
            found = vlpipe(*command)[0]
        return found | {"varied": {"text_lr": rate}}

    def live_rate(self, steps: int) -> float:
        """MiniLM's own rate, that validation likes best for fine-tuned text alone."""
        tried = [self.live(self.image, "text_adapter", steps, rate) for rate in LIVE_RATES]
        return float(self.study.best(tried)["varied"]["text_lr"])

    def chosen_k(self, autoencoders: Mapping[int, Found]) -> int:
        """The K whose edited photos validation likes best."""
        settings = ADAPTER, *EPOCHS, "lr=0.0001", "text_lr=0.0001"
        edited = {k: self.masks(found, settings)[0] for k, found in autoencoders.items()}
        best = self.study.best([run | {"varied": {"k": k}} for k, run in edited.items()])
        return next(k for k, run in edited.items() if run["run"] == best["run"])


def _settings(run: Found) -> list[str]:
    """What a sweep varied beside the seed, as settings."""
    return [f"{name}={json.dumps(value)}" for name, value in run["varied"].items() if name != "seed"]


def lines(space: Space, live_steps: int) -> list[Line]:
    """All of the table; with the cached text and with Eq. 10 the rates are those of Eq. 11 with the adapter."""
    rates = "lr=0.0001,0.001", "text_lr=0.0001,0.001"
    single = {k: space.autoencoder(k) for k in KS}
    k = space.chosen_k(single)
    below = space.more(single[k], k)
    found = _settings(space.study.best(space.masks(below[0], [ADAPTER, *EPOCHS], *rates)))
    made = {
        "unedited": space.plain("identity", ()),
        "fine-tuned text, adapter": space.plain("text_adapter", EPOCHS, rates[1]),
        "SmartCLIP, adapter": space.plain("smartclip", [ADAPTER, *EPOCHS], *rates),
        f"rebuilt, K {k}": space.tevi(below, 'mask="none"', "epochs=0"),
        f"TEVI, cached text, K {k}": space.tevi(below, *EPOCHS, *found),
        f"TEVI, adapter, K {k}": space.tevi(below, ADAPTER, *EPOCHS, *found),
        f"TEVI, adapter, K {k}, Eq. 10": space.tevi(below, ADAPTER, *EPOCHS, *found, "equation=10"),
    }
    if live_steps:
        own, rate = [space.image] * len(below), space.live_rate(live_steps)
        codes = [f"{space.image}::{one['run']}" for one in below]
        live = {
            "fine-tuned text": ("text_adapter", own),
            "SmartCLIP": ("smartclip", own),
            f"TEVI, K {k}": ("tevi", codes),
        }
        for name, (head, images) in live.items():
            runs = [space.live(image, head, live_steps, rate, n) for n, image in enumerate(images)]
            made[f"{name}, live"] = [str(run["run"]) for run in runs]
    return [Line(space.study, name, runs) for name, runs in made.items()]


def main() -> None:
    """Prepare, train, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    Study.options(parser)
    parser.add_argument("--live-steps", type=int, default=0, help="Of MiniLM itself; none: leave its lines out.")
    given = parser.parse_args()
    study = Study.of(given)
    study.prepare()
    show(lines(Space.of(study), given.live_steps))


if __name__ == "__main__":
    main()

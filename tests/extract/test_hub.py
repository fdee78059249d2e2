"""Hub names where there is no hub: an answer at once, and the models that lie here all the same."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vlpipe.extract.encoders import hf
from vlpipe.extract.encoders.hf import Hf, HfConfig
from vlpipe.extract.hub import hub_answers
from vlpipe.foundation.errors import VlpipeError


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server that knows no file."""

    class Nothing(http.server.SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_an_answer_of_any_kind_counts(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    assert hub_answers()


def test_without_a_network_an_unknown_model_is_one_error_at_once(
    no_network: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        VlpipeError, match="hf:no/such: AutoModel cannot be loaded from the hub or its local cache"
    ):
        Hf("no/such", HfConfig())
    assert no_network == []
    assert capfd.readouterr().err == ""


def test_without_a_network_a_model_in_the_cache_is_loaded(
    no_network: list[float], bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "models--some--bert"
    shutil.copytree(bert, place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached, local = (Hf(name, HfConfig(device="cpu")) for name in ("some/bert", str(bert)))
    assert no_network == []
    assert cached.identity("text") == local.identity("text")
    assert torch.equal(
        cached.model.embeddings.word_embeddings.weight, local.model.embeddings.word_embeddings.weight
    )


def test_a_folder_asks_nobody(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "hub_answers", lambda: pytest.fail("asked"))
    assert Hf(str(bert), HfConfig(device="cpu")).local

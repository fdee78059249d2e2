"""Small random models of the real architectures, saved as the library saves them, with its own tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
import transformers as hf

LIMIT = 24  # tokens that a text model sees
BLOCKS = 3
PLAIN = {"hidden_size": 32, "num_hidden_layers": BLOCKS, "num_attention_heads": 2, "intermediate_size": 48}
PATCHES = {**PLAIN, "image_size": 32, "patch_size": 8}  # 4 x 4 patches
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
WORDS = {**PLAIN, "max_position_embeddings": LIMIT, "vocab_size": 48}
GROUPED = {**WORDS, "num_key_value_heads": 1, "head_dim": 16}
Family = tuple[Callable[[], Any], Callable[[], Any]]  # the model, and its processor or tokenizer


def squares(size: int) -> Callable[[], Any]:
    """A processor that resizes to a square of this many pixels."""
    return lambda: hf.ViTImageProcessor(size={"height": size, "width": size}, image_mean=[0.4] * 3)


def swin() -> Any:
    """Three stages of a 64-pixel picture: 8 x 8, 4 x 4 and again 4 x 4 tokens."""
    return hf.SwinModel(
        hf.SwinConfig(
            image_size=64, patch_size=4, embed_dim=8, depths=[1, 2, 1], num_heads=[1, 2, 4], window_size=4
        )
    )


# Name: model, processor, tokens before the patches, patches of the last state.
PICTURES: dict[str, tuple[Callable[[], Any], Callable[[], Any], int, int]] = {
    "vit": (lambda: hf.ViTModel(hf.ViTConfig(**PATCHES)), squares(32), 1, 16),
    "deit": (lambda: hf.DeiTModel(hf.DeiTConfig(**PATCHES)), squares(32), 2, 16),
    "dinov2": (lambda: hf.Dinov2Model(hf.Dinov2Config(**PATCHES)), squares(32), 1, 16),
    "dinov2-registers": (
        lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**PATCHES, num_register_tokens=4)),
        squares(32), 5, 16,
    ),
    "dinov3": (
        lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**PATCHES, num_register_tokens=4)), squares(32), 5, 16
    ),
    "dinov3-convnext": (
        lambda: hf.DINOv3ConvNextModel(hf.DINOv3ConvNextConfig(**STAGES, image_size=64)), squares(64), 1, 4
    ),
    "siglip-vision": (lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**PATCHES)), squares(32), 0, 16),
    "clip-vision": (lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**PATCHES)), squares(32), 1, 16),
    "swin": (swin, squares(64), 0, 16),
    "resnet": (
        lambda: hf.ResNetModel(hf.ResNetConfig(**STAGES, embedding_size=8, layer_type="basic")), squares(64), 0, 4
    ),
    "convnext": (lambda: hf.ConvNextModel(hf.ConvNextConfig(**STAGES)), squares(64), 0, 4),
}  # fmt: skip


def numbers(*first: str, space: str = "▁") -> dict[str, int]:
    """A vocabulary of these, a sign for the space, and single letters."""
    return {token: number for number, token in enumerate([*first, space, *ascii_lowercase, "A", ".", ","])}


def gemma_tokenizer() -> Any:
    """Letters; begins every text."""
    vocab = numbers("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    return hf.GemmaTokenizer(vocab=vocab, merges=[], add_bos_token=True)


def gemma_end_tokenizer() -> Any:
    """As SigLIP 2 of one size ships it: ends every text, and knows upper case."""
    vocab = numbers("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    return hf.GemmaTokenizer(vocab=vocab, merges=[], add_bos_token=False, add_eos_token=True)


def byte_tokenizer(*special: str) -> Any:
    """Letters by GPT-2's rules; `special` are begin and end token, given to the text by a template."""
    from tokenizers import processors

    first = special or ("<|endoftext|>",)
    names = {"bos_token": first[0], "eos_token": first[-1], "unk_token": first[-1]}
    found = hf.GPT2Tokenizer(vocab=numbers(*first, space="Ġ"), merges=[], **names)
    if special:
        found.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
        )
    return found


def llama_tokenizer() -> Any:
    """Begins every text; has no padding token."""
    inner = byte_tokenizer("<|begin_of_text|>", "<|end_of_text|>").backend_tokenizer
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    )


def bert_tokenizer() -> Any:
    """Letters and their continuations between [CLS] and [SEP]."""
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"adegort."]
    vocab = {token: number for number, token in enumerate([*first, *(f"##{c}" for c in ascii_lowercase)])}
    return hf.BertTokenizer(vocab=vocab)


TEXTS: dict[str, Family] = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(**WORDS)), bert_tokenizer),
    "llama": (lambda: hf.LlamaModel(hf.LlamaConfig(**GROUPED)), llama_tokenizer),
    "olmo2": (
        lambda: hf.Olmo2Model(hf.Olmo2Config(**WORDS, eos_token_id=0, pad_token_id=0)), lambda: byte_tokenizer()
    ),
    "gemma2": (lambda: hf.Gemma2Model(hf.Gemma2Config(**GROUPED, sliding_window=8)), gemma_tokenizer),
    "gemma3-text": (lambda: hf.Gemma3TextModel(gemma3_texts()), gemma_tokenizer),
    "gemma3": (
        lambda: hf.Gemma3Model(hf.Gemma3Config(text_config=gemma3_texts(), vision_config={**PATCHES})),
        gemma_tokenizer,
    ),
}  # fmt: skip


def gemma3_texts() -> Any:
    """Sliding attention in all blocks but the last."""
    return hf.Gemma3TextConfig(
        **GROUPED, sliding_window=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"]
    )


def clip_tokenizer() -> Any:
    """Letters between begin and end token; the end token fills up, as in OpenAI's."""
    letters = [*ascii_lowercase, *(f"{c}</w>" for c in ascii_lowercase), ".</w>", ",</w>"]
    vocab = {token: number for number, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    return hf.CLIPTokenizer(vocab=vocab, merges=[])


def siglip2_tokenizer() -> Any:
    """Letters, lower case, an end token, and a default of padding on the left."""
    return hf.Siglip2Tokenizer(
        vocab=numbers("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"), merges=[], add_eos_token=True
    )


def clip() -> Any:
    """CLIP with the end token of its tokenizer."""
    texts = {**WORDS, "vocab_size": 56, "bos_token_id": 54, "eos_token_id": 55}
    return hf.CLIPModel(hf.CLIPConfig(text_config=texts, vision_config={**PATCHES}, projection_dim=12))


def siglip() -> Any:
    """SigLIP, or SigLIP 2 of one size, which is the same architecture."""
    config = hf.SiglipConfig(text_config={**WORDS, "projection_size": 32}, vision_config={**PATCHES})
    return hf.SiglipModel(config)


def naflex() -> Any:
    """SigLIP 2 of pictures with any number of patches up to 16."""
    vision = {k: v for k, v in PATCHES.items() if k != "image_size"} | {"num_patches": 16}
    return hf.Siglip2Model(hf.Siglip2Config(text_config={**WORDS, "projection_size": 32}, vision_config=vision))


def save(folder: Path, model: Callable[[], Any], *parts: Callable[[], Any]) -> Path:
    """Random weights of the same seed each time, away from zero so that every block does something."""
    torch.manual_seed(0)
    made = model()
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    for part in (made, *(part() for part in parts)):
        part.save_pretrained(folder)
    return folder

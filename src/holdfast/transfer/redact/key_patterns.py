"""Detectors for keys that are recognised by their prefix.

Most are a prefix and a long random run of letters and digits, so they are found in any context. The
checksums that some keys have are not verified: a key that was cut or mistyped should not leak
either, and no ordinary text looks like one.
"""

from __future__ import annotations

from typing import Final

from holdfast.transfer.redact.detector import RIGHT, Detector, prefixed
from holdfast.transfer.redact.plausibility import is_anything, is_discord, is_jwt, is_varied

_W: Final = r"[A-Za-z0-9_-]"
_A: Final = r"[A-Za-z0-9]"
_GITLAB: Final = (
    *("glpat", "gldt", "glrt", "glrtr", "glptt", "glcbt", "glft"),
    *("glffct", "glsoat", "glagent", "glimt", "gloas", "glwt"),
)
_TWILIO: Final = tuple(f"SK{digit}" for digit in "0123456789abcdef")

KEYS: Final[tuple[Detector, ...]] = (
    prefixed("anthropic-key", "Anthropic: sk-ant-…", "sk-", rf"sk-ant-({_W}{{20,}}+)"),
    prefixed("openrouter-key", "OpenRouter: sk-or-…", "sk-", rf"sk-or-({_W}{{20,}}+)"),
    prefixed(
        "openai-key",
        "OpenAI: sk-proj-…, sk-svcacct-…, sk-admin-…, and sk-… of compatible providers",
        "sk-",
        rf"sk-(?:(?:proj|svcacct|service|admin|None)-({_W}{{20,}}+)|({_A}{{20,}}+))",
    ),
    prefixed(
        "google-key",
        "Google: API keys AIza…, OAuth tokens ya29.… and 1//0…, client secrets GOCSPX-…",
        ("AIza", "ya29.", "GOCSPX-", "1//0"),
        rf"AIza({_W}{{35}}){RIGHT}|ya29\.({_W}{{20,}}+)|GOCSPX-({_W}{{20,}}+)|1//0({_W}{{30,}}+)",
    ),
    prefixed(
        "aws-key-id",
        "Amazon: access key ids AKIA… and ASIA…",
        ("AKIA", "ASIA", "ABIA", "ACCA"),
        rf"(?:AKIA|ASIA|ABIA|ACCA)([A-Z0-9]{{16}}){RIGHT}",
        is_varied,  # Not `is_random`: one in thirty has no digit.
    ),
    prefixed(
        "github-token",
        "GitHub: ghp_…, gho_…, ghu_…, ghs_…, ghr_…, github_pat_…",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        rf"gh[pousr]_([A-Za-z0-9_]{{36,}}+(?:\.{_W}{{16,}}+){{0,2}})|github_pat_(\w{{22,}}+)",
    ),
    prefixed(
        "gitlab-token",
        "GitLab: glpat-… and its other tokens",
        _GITLAB,
        rf"(?:{'|'.join(_GITLAB)})-({_W}{{20,}}+(?:\.[0-9a-z]{{2}}\.[0-9a-z]{{7,9}})?)",
    ),
    prefixed(
        "slack-token",
        "Slack: xoxb-…, xoxp-… and its other tokens, xapp-…",
        ("xox", "xapp-"),
        r"(?:xox[a-z](?:\.xox[a-z])?|xapp)-([A-Za-z0-9-]{20,}+)",
    ),
    prefixed(
        "stripe-key",
        "Stripe: sk_live_…, rk_live_…, their test keys, whsec_…",
        ("sk_", "rk_", "whsec_"),
        rf"[sr]k_(?:live|test)_({_A}{{16,}}+)|whsec_([A-Za-z0-9+/]{{24,}}+={{0,2}})",
    ),
    prefixed("huggingface-token", "Hugging Face: hf_…", "hf_", rf"hf_({_A}{{30,}}+)"),
    prefixed("npm-token", "npm: npm_…", "npm_", rf"npm_({_A}{{36,}}+)"),
    prefixed("pypi-token", "PyPI: pypi-…", "pypi-AgE", rf"pypi-(AgE{_W}{{40,}}+)"),
    prefixed("twilio-key", "Twilio: SK…", _TWILIO, rf"SK([0-9a-f]{{32}}){RIGHT}"),
    prefixed(
        "sendgrid-key", "SendGrid: SG.…", "SG.", rf"SG\.({_W}{{16,32}}\.{_W}{{16,64}}){RIGHT}"
    ),
    prefixed(
        "telegram-token",
        "Telegram bots: 123456789:AA…",
        tuple("0123456789"),
        rf"\d{{8,10}}:AA({_W}{{33}}){RIGHT}",
    ),
    prefixed(
        "discord-token",
        "Discord bots and users",
        ("M", "N", "O"),
        rf"([MNO]{_W}{{23,27}}\.{_W}{{6}}\.{_W}{{27,40}}){RIGHT}",
        is_discord,
    ),
    prefixed("groq-key", "Groq: gsk_…", "gsk_", rf"gsk_({_A}{{40,}}+)"),
    prefixed("xai-key", "xAI: xai-…", "xai-", rf"xai-({_A}{{40,}}+)"),
    prefixed("perplexity-key", "Perplexity: pplx-…", "pplx-", rf"pplx-({_A}{{40,}}+)"),
    prefixed("replicate-token", "Replicate: r8_…", "r8_", rf"r8_({_A}{{37,}}+)"),
    prefixed(
        "model-key",
        "Other model providers: Fireworks fw_…, Cerebras csk-…, NVIDIA nvapi-…, Together "
        "tgp_v1_…, ElevenLabs sk_…, Tavily tvly-…, LangSmith lsv2_…",
        ("fw_", "csk-", "nvapi-", "tgp_v1_", "sk_", "tvly-", "lsv2_"),
        rf"fw_({_A}{{22,}}+)|csk-({_A}{{40,}}+)|nvapi-({_W}{{60,}}+)|tgp_v1_({_W}{{40,}}+)"
        rf"|sk_([0-9a-f]{{48}}){RIGHT}|tvly-({_W}{{28,}}+)|lsv2_(?:pt|sk)_([0-9a-f_]{{40,}}+)",
    ),
    prefixed(
        "service-token",
        "Other services: DigitalOcean, Shopify, Databricks, Vault, Docker, Linear, Notion, "
        "Grafana, Sentry, Supabase, PlanetScale, Postman, Figma, Atlassian, New Relic, Mailgun, "
        "RubyGems, Doppler, Netlify, Pulumi",
        (
            *("doo_v1_", "dop_v1_", "dor_v1_", "shpat_", "shpca_", "shppa_", "shpss_", "dapi"),
            *("hvs.", "hvb.", "hvr.", "dckr_", "lin_api_", "ntn_", "glsa_", "glc_eyJ", "sntrys_"),
            *("sntryu_", "sbp_", "sbs_", "pscale_", "PMAK-", "figd_", "ATATT3", "NRAK-", "key-"),
            *("rubygems_", "dp.", "nfp_", "pul-"),
        ),
        rf"do[opr]_v1_([0-9a-f]{{64}})|shp(?:at|ca|pa|ss)_([0-9a-fA-F]{{32}}){RIGHT}"
        rf"|dapi([0-9a-f]{{32}}(?:-\d)?){RIGHT}|hv[sbr]\.({_W}{{24,}}+)"
        rf"|dckr_[po]at_({_W}{{20,}}+)|lin_api_({_A}{{32,}}+)|ntn_({_A}{{40,}}+)"
        rf"|glsa_(\w{{40,}}+)|glc_(eyJ[A-Za-z0-9+/]{{30,}}+=*)|sntry[su]_([\w+/=-]{{40,}}+)"
        rf"|sb[ps]_([0-9a-f]{{40}}){RIGHT}|pscale_(?:tkn|oauth|pw)_({_W}{{32,}}+)"
        rf"|PMAK-({_W}{{50,}}+)|figd_({_W}{{40,}}+)|ATATT3({_W}{{40,}}+=*\w*)"
        rf"|NRAK-([A-Z0-9]{{27}}){RIGHT}|key-([0-9a-f]{{32}}){RIGHT}"
        rf"|rubygems_([0-9a-f]{{48}}){RIGHT}"
        rf"|dp\.[a-z]{{2,5}}\.({_A}{{40,}}+)|nfp_({_A}{{36,}}+)|pul-([0-9a-f]{{40}}){RIGHT}",
    ),
    prefixed(
        "jwt",
        "JSON web tokens: eyJ….eyJ….…",
        "eyJ",
        # Not after a dash, so that each run of letters is scanned only once.
        rf"(?<!-)(eyJ{_W}{{14,}}+\.{_W}{{10,}}+\.(?:{_W}++(?:\.{_W}++){{0,2}})?)",
        is_jwt,
    ),
    prefixed(
        "age-key",
        "age: AGE-SECRET-KEY-1…",
        "AGE-SECRET-KEY-1",
        r"AGE-SECRET-KEY-1([0-9A-Z]{50,}+)",
        is_anything,
    ),
)

"""Detectors for keys that are recognised by their prefix.

Most are a prefix and a long random run of letters and digits, so they are found in any context. The
checksums that some keys have are not verified: a key that was cut or mistyped should not leak
either, and no ordinary text looks like one.
"""

from __future__ import annotations

from typing import Final

from holdfast.transfer.redact.detector import WORD_END, Detector, prefixed
from holdfast.transfer.redact.plausibility import accept_any, is_discord_token, is_jwt, is_varied

_TOKEN_CHAR: Final = r"[A-Za-z0-9_-]"  # noqa: S105
_ALNUM: Final = r"[A-Za-z0-9]"
_GITLAB_PREFIXES: Final = (
    *("glpat", "gldt", "glrt", "glrtr", "glptt", "glcbt", "glft"),
    *("glffct", "glsoat", "glagent", "glimt", "gloas", "glwt"),
)
_TWILIO_PREFIXES: Final = tuple(f"SK{digit}" for digit in "0123456789abcdef")

KEY_DETECTORS: Final[tuple[Detector, ...]] = (
    prefixed("anthropic-key", "Anthropic: sk-ant-…", "sk-", rf"sk-ant-({_TOKEN_CHAR}{{20,}}+)"),
    prefixed("openrouter-key", "OpenRouter: sk-or-…", "sk-", rf"sk-or-({_TOKEN_CHAR}{{20,}}+)"),
    prefixed(
        "openai-key",
        "OpenAI: sk-proj-…, sk-svcacct-…, sk-admin-…, and sk-… of compatible providers",
        "sk-",
        rf"sk-(?:(?:proj|svcacct|service|admin|None)-({_TOKEN_CHAR}{{20,}}+)|({_ALNUM}{{20,}}+))",
    ),
    prefixed(
        "google-key",
        "Google: API keys AIza…, OAuth tokens ya29.… and 1//0…, client secrets GOCSPX-…",
        ("AIza", "ya29.", "GOCSPX-", "1//0"),
        rf"AIza({_TOKEN_CHAR}{{35}}){WORD_END}|ya29\.({_TOKEN_CHAR}{{20,}}+)|GOCSPX-({_TOKEN_CHAR}{{20,}}+)|1//0({_TOKEN_CHAR}{{30,}}+)",
    ),
    prefixed(
        "aws-key-id",
        "Amazon: access key ids AKIA… and ASIA…",
        ("AKIA", "ASIA", "ABIA", "ACCA"),
        rf"(?:AKIA|ASIA|ABIA|ACCA)([A-Z0-9]{{16}}){WORD_END}",
        is_varied,  # Not `is_random`: one in thirty has no digit.
    ),
    prefixed(
        "github-token",
        "GitHub: ghp_…, gho_…, ghu_…, ghs_…, ghr_…, github_pat_…",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        rf"gh[pousr]_([A-Za-z0-9_]{{36,}}+(?:\.{_TOKEN_CHAR}{{16,}}+){{0,2}})|github_pat_(\w{{22,}}+)",
    ),
    prefixed(
        "gitlab-token",
        "GitLab: glpat-… and its other tokens",
        _GITLAB_PREFIXES,
        rf"(?:{'|'.join(_GITLAB_PREFIXES)})-({_TOKEN_CHAR}{{20,}}+(?:\.[0-9a-z]{{2}}\.[0-9a-z]{{7,9}})?)",
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
        rf"[sr]k_(?:live|test)_({_ALNUM}{{16,}}+)|whsec_([A-Za-z0-9+/]{{24,}}+={{0,2}})",
    ),
    prefixed("huggingface-token", "Hugging Face: hf_…", "hf_", rf"hf_({_ALNUM}{{30,}}+)"),
    prefixed("npm-token", "npm: npm_…", "npm_", rf"npm_({_ALNUM}{{36,}}+)"),
    prefixed("pypi-token", "PyPI: pypi-…", "pypi-AgE", rf"pypi-(AgE{_TOKEN_CHAR}{{40,}}+)"),
    prefixed("twilio-key", "Twilio: SK…", _TWILIO_PREFIXES, rf"SK([0-9a-f]{{32}}){WORD_END}"),
    prefixed(
        "sendgrid-key",
        "SendGrid: SG.…",
        "SG.",
        rf"SG\.({_TOKEN_CHAR}{{16,32}}\.{_TOKEN_CHAR}{{16,64}}){WORD_END}",
    ),
    prefixed(
        "telegram-token",
        "Telegram bots: 123456789:AA…",
        tuple("0123456789"),
        rf"\d{{8,10}}:AA({_TOKEN_CHAR}{{33}}){WORD_END}",
    ),
    prefixed(
        "discord-token",
        "Discord bots and users",
        ("M", "N", "O"),
        rf"([MNO]{_TOKEN_CHAR}{{23,27}}\.{_TOKEN_CHAR}{{6}}\.{_TOKEN_CHAR}{{27,40}}){WORD_END}",
        is_discord_token,
    ),
    prefixed("groq-key", "Groq: gsk_…", "gsk_", rf"gsk_({_ALNUM}{{40,}}+)"),
    prefixed("xai-key", "xAI: xai-…", "xai-", rf"xai-({_ALNUM}{{40,}}+)"),
    prefixed("perplexity-key", "Perplexity: pplx-…", "pplx-", rf"pplx-({_ALNUM}{{40,}}+)"),
    prefixed("replicate-token", "Replicate: r8_…", "r8_", rf"r8_({_ALNUM}{{37,}}+)"),
    prefixed(
        "model-key",
        "Other model providers: Fireworks fw_…, Cerebras csk-…, NVIDIA nvapi-…, Together "
        "tgp_v1_…, ElevenLabs sk_…, Tavily tvly-…, LangSmith lsv2_…",
        ("fw_", "csk-", "nvapi-", "tgp_v1_", "sk_", "tvly-", "lsv2_"),
        rf"fw_({_ALNUM}{{22,}}+)|csk-({_ALNUM}{{40,}}+)|nvapi-({_TOKEN_CHAR}{{60,}}+)|tgp_v1_({_TOKEN_CHAR}{{40,}}+)"
        rf"|sk_([0-9a-f]{{48}}){WORD_END}|tvly-({_TOKEN_CHAR}{{28,}}+)|lsv2_(?:pt|sk)_([0-9a-f_]{{40,}}+)",
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
        rf"do[opr]_v1_([0-9a-f]{{64}})|shp(?:at|ca|pa|ss)_([0-9a-fA-F]{{32}}){WORD_END}"
        rf"|dapi([0-9a-f]{{32}}(?:-\d)?){WORD_END}|hv[sbr]\.({_TOKEN_CHAR}{{24,}}+)"
        rf"|dckr_[po]at_({_TOKEN_CHAR}{{20,}}+)|lin_api_({_ALNUM}{{32,}}+)|ntn_({_ALNUM}{{40,}}+)"
        rf"|glsa_(\w{{40,}}+)|glc_(eyJ[A-Za-z0-9+/]{{30,}}+=*)|sntry[su]_([\w+/=-]{{40,}}+)"
        rf"|sb[ps]_([0-9a-f]{{40}}){WORD_END}|pscale_(?:tkn|oauth|pw)_({_TOKEN_CHAR}{{32,}}+)"
        rf"|PMAK-({_TOKEN_CHAR}{{50,}}+)|figd_({_TOKEN_CHAR}{{40,}}+)|ATATT3({_TOKEN_CHAR}{{40,}}+=*\w*)"
        rf"|NRAK-([A-Z0-9]{{27}}){WORD_END}|key-([0-9a-f]{{32}}){WORD_END}"
        rf"|rubygems_([0-9a-f]{{48}}){WORD_END}"
        rf"|dp\.[a-z]{{2,5}}\.({_ALNUM}{{40,}}+)|nfp_({_ALNUM}{{36,}}+)|pul-([0-9a-f]{{40}}){WORD_END}",
    ),
    prefixed(
        "jwt",
        "JSON web tokens: eyJ….eyJ….…",
        "eyJ",
        # Not after a dash, so that each run of letters is scanned only once.
        rf"(?<!-)(eyJ{_TOKEN_CHAR}{{14,}}+\.{_TOKEN_CHAR}{{10,}}+\.(?:{_TOKEN_CHAR}++(?:\.{_TOKEN_CHAR}++){{0,2}})?)",
        is_jwt,
    ),
    prefixed(
        "age-key",
        "age: AGE-SECRET-KEY-1…",
        "AGE-SECRET-KEY-1",
        r"AGE-SECRET-KEY-1([0-9A-Z]{50,}+)",
        accept_any,
    ),
)

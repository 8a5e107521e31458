"""Detectors for keys that are recognised by their own shape: a prefix, or a mark inside.

Most are a prefix and a long random run of letters and digits, so they are found in any context. The
checksums that some keys have are not verified: a key that was cut or mistyped should not leak
either, and no ordinary text looks like one.

The tables list the shapes as facts. A shape is made of literals and of runs, `alphabet:length`,
where a length is exact (`36`), a range (`16-32`) or a minimum (`20+`): `sk-ant- wide:20+`. A shape
that begins with a run is searched by its first literal: `hex:32 -us digit:1-2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from holdfast.transfer.redact.detector import Detector, SecretRule, anchored, prefixed
from holdfast.transfer.redact.plausibility import (
    accept_any,
    is_discord_token,
    is_encoded_key,
    is_glued_key,
    is_jwt,
    is_random,
    is_varied,
)

_ALPHABETS: Final = {
    "digit": "0-9",
    "hex": "0-9a-f",
    "lower": "0-9a-z",
    "upper": "0-9A-Z",
    "alnum": "0-9A-Za-z",
    "word": "0-9A-Za-z_",
    "wide": "0-9A-Za-z_-",
    "padded": "0-9A-Za-z_=-",
    "tilde": "0-9A-Za-z_~.-",
    "base64": "0-9A-Za-z+/",
}
# What may not follow a run of exact length: it would be a longer run of something else.
_NOT_AFTER: Final = {"digit": "alnum", "hex": "alnum", "lower": "alnum", "word": "wide"}
_RUN: Final = re.compile(rf"({'|'.join(_ALPHABETS)}):(\d+)(?:(\+)|-(\d+))?")

_MODELS: Final = {
    "anthropic-key": ("Anthropic: sk-ant-…", ("sk-ant- wide:20+",)),
    "openrouter-key": ("OpenRouter: sk-or-…", ("sk-or- wide:20+",)),
    "openai-key": (
        "OpenAI: sk-proj-…, sk-svcacct-…, sk-admin-…, and sk-… of compatible providers",
        (
            *("sk-proj- wide:20+", "sk-svcacct- wide:20+", "sk-service- wide:20+"),
            *("sk-admin- wide:20+", "sk-None- wide:20+", "sk- alnum:20+"),
        ),
    ),
}
_GITLAB: Final = (
    *("glpat", "gldt", "glrt", "glrtr", "glptt", "glcbt", "glft"),
    *("glffct", "glsoat", "glagent", "glimt", "gloas", "glwt"),
)
# What may follow a key: the parts of newer tokens, separated by dots.
_TAILS: Final = {
    "github-token": r"(?:\.[A-Za-z0-9_-]{16,}+){0,2}",
    "gitlab-token": r"(?:\.[0-9a-z]{2}\.?[0-9a-z]{7,9})?",
}
_SERVICES: Final = {
    "github-token": (
        "GitHub: ghp_…, gho_…, ghu_…, ghs_…, ghr_…, github_pat_…",
        (*(f"gh{kind}_ word:36+" for kind in "pousr"), "github_pat_ word:22+"),
    ),
    "gitlab-token": (
        "GitLab: glpat-… and its other tokens, GR1348941…",
        (*(f"{kind}- wide:20+" for kind in _GITLAB), "GR1348941 wide:20+"),
    ),
    "npm-token": ("npm: npm_…", ("npm_ alnum:36+",)),
    "pypi-token": ("PyPI: pypi-…", ("pypi-AgE wide:40+",)),
    "stripe-key": (
        "Stripe: sk_live_…, rk_live_…, their test keys, whsec_…",
        (
            *("sk_live_ alnum:16+", "sk_test_ alnum:16+", "rk_live_ alnum:16+"),
            *("rk_test_ alnum:16+", "sk_prod_ alnum:16+", "whsec_ base64:24+"),
        ),
    ),
}
_WORD_STARTS: Final = {
    "huggingface-token": ("Hugging Face: hf_…", ("hf_ alnum:30+", "api_org_ alnum:30+")),
    "twilio-key": ("Twilio: SK…", tuple(f"SK{digit} hex:31" for digit in "0123456789abcdef")),
    "sendgrid-key": ("SendGrid: SG.…", ("SG. wide:16-32 . wide:16-64",)),
    "groq-key": ("Groq: gsk_…", ("gsk_ alnum:40+",)),
    "xai-key": ("xAI: xai-…", ("xai- alnum:40+",)),
    "perplexity-key": ("Perplexity: pplx-…", ("pplx- alnum:40+",)),
    "replicate-token": ("Replicate: r8_…", ("r8_ alnum:37+",)),
    "model-key": (
        (
            "Other model providers: Fireworks, Cerebras, NVIDIA, Together, ElevenLabs, Tavily, "
            "LangSmith, Cohere, Jina, Modal, Nomic, Pinecone"
        ),
        (
            *("fw_ alnum:22+", "csk- alnum:40+", "nvapi- wide:60+", "tgp_v1_ wide:40+"),
            *(
                "sk_ hex:48",
                "tvly- wide:28+",
                "lsv2_pt_ hex:32 _ hex:8+",
                "lsv2_sk_ hex:32 _ hex:8+",
            ),
            *("co_ alnum:40", "jina_ alnum:60", "ak- alnum:22", "as- alnum:22", "nk- wide:43"),
            *("pcsk_ word:60+", "dg_ hex:40"),
        ),
    ),
    "cloud-key": (
        (
            "Other clouds and hosts: Alibaba, Amazon Bedrock and MWS, Azure, Cloudflare, "
            "DigitalOcean, Exoscale, Fly, Heroku, Neon, Netlify, OpenShift, PlanetScale, "
            "Render, Scaleway, Scalingo, Supabase, Tailscale, Vercel, Yandex"
        ),
        (
            *("LTAI alnum:12-24", "ABSK base64:100+", "bedrock-api-key- alnum:40+"),
            *("amzn.mws. hex:8 - hex:4 - hex:4 - hex:4 - hex:12", "v1.0- hex:24 - hex:146"),
            *("doo_v1_ hex:64", "dop_v1_ hex:64", "dor_v1_ hex:64", "EXO hex:24"),
            *("fo1_ wide:43", "fm1a_ base64:100+", "fm1r_ base64:100+", "fm2_ base64:100+"),
            *("HRKU-AA wide:50+", "HRKU- hex:8 - hex:4 - hex:4 - hex:4 - hex:12"),
            *("napi_ lower:60+", "nfp_ alnum:36+", "sha256~ wide:43", "rnd_ alnum:28+"),
            *("pscale_tkn_ padded:32+", "pscale_oauth_ padded:32+", "pscale_pw_ padded:32+"),
            *("SCW upper:17", "tk-us- wide:48", "sbp_ hex:40", "sbs_ hex:40"),
            *("sb_secret_ wide:24+", "tskey-auth- alnum:8+ - alnum:20+", "vercel_ alnum:24"),
            *("tskey-api- alnum:8+ - alnum:20+", "AQVN wide:35-38", "t1. wide:20+ . wide:86"),
            *("alnum:52 JQQJ9 alnum:27", "base64:76 +ASt base64:6 ==", "lower:76 AZDO alnum:4"),
            "alnum:3 digit:1 Q~ tilde:31-34",
        ),
    ),
    "service-token": (
        (
            "Other services: 1Password, Adobe, Airtable, Artifactory, Asana, Atlassian, "
            "Bitbucket, Braintree, Brevo, Buildkite, CircleCI, ClickUp, Clojars, Contentful, "
            "crates.io, Databricks, Docker, Doppler, Dropbox, Duffel, Dynatrace, EasyPost, "
            "Facebook, Figma, Flutterwave, Frame.io, Grafana, Harness, Infracost, "
            "LaunchDarkly, Linear, Mailchimp, Mailgun, Mapbox, MaxMind, New Relic, Notion, "
            "NuGet, Octopus, PostHog, Postman, Prefect, Pulumi, Razorpay, ReadMe, Resend, "
            "RubyGems, Segment, Sentry, Settlemint, Shippo, Shopify, Snyk, SonarQube, "
            "Sourcegraph, Square, Terraform, Typeform, Vault"
        ),
        (
            *("ops_eyJ base64:100+", "p8e- lower:32", "pat alnum:14 . hex:64", "AKCp alnum:69"),
            *("A3- upper:6 - upper:6 - upper:5 - upper:5 - upper:5 - upper:5", "cmVmd alnum:59"),
            *("A3- upper:6 - upper:11 - upper:5 - upper:5 - upper:5", "1/1 digit:14-16 : hex:32"),
            *(
                "ATATT3 padded:40+",
                "ATCTT3 padded:40+",
                "ATBB alnum:32",
                "xkeysib- hex:64 - alnum:16",
            ),
            *("access_token$production$ lower:16 $ hex:32", "bkua_ hex:40", "CCIPAT_ word:50+"),
            *("pk_ digit:7-9 _ upper:32", "CLOJARS_ lower:60", "CFPAT- wide:43", "cio alnum:32"),
            *("dapi hex:32", "dckr_pat_ wide:20+", "dckr_oat_ wide:20+", "sl. wide:100+"),
            *(f"dp.{kind}. alnum:40+" for kind in ("pt", "ct", "st", "sa", "scim", "audit")),
            *("duffel_live_ padded:43", "duffel_test_ padded:43", "dt0c01. upper:24 . upper:64"),
            *("EZAK alnum:54", "EZTK alnum:54", "EAA alnum:100+", "figd_ wide:40+"),
            *("FLWSECK_TEST- alnum:12+", "FLWSECK- alnum:32", "fio-u- padded:64"),
            *("glsa_ word:40+", "glc_eyJ base64:30+", "pat. wide:22 . hex:24 . alnum:20"),
            *("ico- alnum:32", "sdk- hex:8 - hex:4 - hex:4 - hex:4 - hex:12", "lin_api_ alnum:32+"),
            *(
                "lin_oauth_ hex:64",
                "hex:32 -us digit:1-2",
                "key- hex:32",
                "sk.eyJ wide:40+ . wide:20+",
            ),
            *("alnum:6 _ alnum:29 _mmk", "NRAK- upper:27", "secret_ alnum:43", "ntn_ alnum:40+"),
            *("oy2 lower:43", "API- upper:26", "phx_ alnum:40+", "PMAK- wide:50+", "pnu_ alnum:36"),
            *("pul- hex:40", "rzp_live_ alnum:14", "rzp_test_ alnum:14", "rdme_ lower:70"),
            *(
                "re_ alnum:8 _ alnum:22-28",
                "rubygems_ hex:48",
                "sgp_ alnum:40+",
                "sntrys_ base64:40+",
            ),
            *("sntryu_ hex:64", "sm_pat_ alnum:16", "sm_aat_ alnum:16", "sm_sat_ alnum:16"),
            *("shippo_live_ hex:40", "shippo_test_ hex:40", "shpat_ hex:32", "shpca_ hex:32"),
            *("shppa_ hex:32", "shpss_ hex:32", "snyk_uat. hex:8 . wide:40+", "squ_ hex:40"),
            *(
                "sqp_ hex:40",
                "sqa_ hex:40",
                "EAAA wide:56-64",
                "sq0atp- wide:22+",
                "sq0csp- wide:40+",
            ),
            *("alnum:14 .atlasv1. wide:60+", "tfp_ wide:40+", "hvs. wide:24+", "hvb. wide:24+"),
            *("hvr. wide:24+", "s-s4t2ud- hex:64", "s-s4t2af- hex:64"),
        ),
    ),
}


_MIN_GLUED_PREFIX: Final = 4  # A shorter one is also the end of a word: `task-…`.


def _piece(piece: str, *, last: bool) -> tuple[int, str]:
    """Return the shortest length of a run, and its pattern; 0 and the pattern of a literal."""
    run = _RUN.fullmatch(piece)
    if run is None:
        return 0, re.escape(piece)
    alphabet, least, more, most = run.groups()
    characters = f"[{_ALPHABETS[alphabet]}]"
    padding = "={0,2}" if alphabet == "base64" else ""
    if more:
        return int(least), f"{characters}{{{least},}}+{padding}"
    end = f"(?![{_ALPHABETS[_NOT_AFTER.get(alphabet, alphabet)]}])" if last else ""
    return int(least), f"{characters}{{{least},{most or least}}}+{end}{padding}"


def _shape_rule(shape: str, tail: str, *, glued: bool) -> SecretRule:
    """Return the rule for a shape, which begins with a prefix or has a mark inside."""
    pieces = shape.split()
    runs = [_piece(piece, last=at == len(pieces)) for at, piece in enumerate(pieces, 1)]
    if not runs[0][0]:
        pattern = f"{runs[0][1]}({''.join(pattern for _, pattern in runs[1:])}{tail})"
        glued = glued and len(pieces[0]) >= _MIN_GLUED_PREFIX
        return prefixed(pieces[0], pattern, glued=is_glued_key if glued else None)
    literals = [at for at, (least, _) in enumerate(runs) if not least]
    mark = max(literals, key=lambda at: len(pieces[at]))
    reach = sum(least or len(piece) for (least, _), piece in zip(runs[:mark], pieces, strict=False))
    pattern = "".join(pattern for _, pattern in runs)
    return anchored(
        (pieces[mark].lower(),),
        rf"(?-i:(?<![A-Za-z0-9])({pattern}))",
        is_random,
        reach=reach,
        whole=True,
    )


def _table(table: dict[str, tuple[str, tuple[str, ...]]], *, glued: bool) -> tuple[Detector, ...]:
    return tuple(
        _detector(name, finds, *_rules(shapes, tail=_TAILS.get(name, ""), glued=glued))
        for name, (finds, shapes) in table.items()
    )


def _rules(shapes: Iterable[str], *, tail: str = "", glued: bool = False) -> tuple[SecretRule, ...]:
    return tuple(_shape_rule(shape, tail, glued=glued) for shape in shapes)


def _detector(name: str, finds: str, *rules: SecretRule) -> Detector:
    return Detector(name=name, finds=finds, rules=rules)


_WIDE: Final = f"[{_ALPHABETS['wide']}]"
_DER: Final = "[A-Za-z0-9+/]{40,}+={0,2}"

KEY_DETECTORS: Final[tuple[Detector, ...]] = (
    *_table(_MODELS, glued=True),
    _detector(
        "google-key",
        "Google: API keys AIza… and AQ.…, OAuth tokens ya29.… and 1//0…, client secrets GOCSPX-…",
        *_rules(("AIza wide:35", "GOCSPX- wide:20+"), glued=True),
        *_rules(("AQ.Ab wide:40+", "ya29. wide:20+", "1//0 wide:30+")),
    ),
    _detector(
        "aws-key-id",
        "Amazon: access key ids AKIA… and ASIA…",
        *(
            # `is_varied` and not `is_random`: one in thirty has no digit.
            prefixed(start, f"{start}([A-Z0-9]{{16}})(?![A-Z0-9])", is_varied, glued=is_varied)
            for start in ("AKIA", "ASIA", "ABIA", "ACCA")
        ),
    ),
    *_table(_SERVICES, glued=True),
    _detector(
        "slack-token",
        "Slack: xoxb-…, xoxp-… and its other tokens, xapp-…",
        prefixed(
            (*(f"xox{kind}-" for kind in "abcdeoprs"), "xoxe.xox", "xapp-"),
            r"(?:xox[a-z](?:\.xox[a-z])?|xapp)-([A-Za-z0-9-]{20,}+)",
            glued=is_glued_key,
        ),
    ),
    *_table(_WORD_STARTS, glued=False),
    _detector(
        "telegram-token",
        "Telegram bots: 123456789:AA…",
        prefixed(tuple("0123456789"), rf"\d{{8,10}}:AA({_WIDE}{{33}})(?!{_WIDE})"),
        anchored(("/bot",), rf"/bot(?P<secret>\d{{8,10}}:AA{_WIDE}{{33}})(?!{_WIDE})", is_random),
    ),
    _detector(
        "discord-token",
        "Discord bots and users",
        prefixed(
            ("M", "N", "O"),
            rf"([MNO]{_WIDE}{{23,27}}\.{_WIDE}{{6}}\.{_WIDE}{{27,40}})(?!{_WIDE})",
            is_discord_token,
        ),
    ),
    _detector(
        "jwt",
        "JSON web tokens: eyJ….eyJ….…",
        prefixed(
            "eyJ",
            # Not after a dash, so that each run of letters is scanned only once.
            rf"(?<!-)(eyJ{_WIDE}{{14,}}+\.{_WIDE}{{10,}}+\.(?:{_WIDE}++(?:\.{_WIDE}++){{0,2}})?)",
            is_jwt,
        ),
    ),
    _detector(
        "age-key",
        "age: AGE-SECRET-KEY-1…",
        prefixed("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1([0-9A-Z]{50,}+)", accept_any),
    ),
    _detector(
        "encoded-key",
        "Private keys in base64 without their PEM lines, PEM in base64 (client-key-data), xprv…",
        prefixed("LS0tLS1CRUdJTi", f"(LS0tLS1CRUdJTi{_DER})", is_encoded_key),
        # PKCS#1 and PKCS#8 of RSA; SEC1 and PKCS#8 of elliptic curves; Ed25519.
        prefixed("MII", f"(MII[A-Z][A-Za-z0-9+/]{{2}}IBA[AD]{_DER})"),
        prefixed(("MIG", "MHc", "MIH"), f"((?:MI[GH][A-Za-z0-9+/]AgE[AB]|MHcCAQEE){_DER})"),
        prefixed("MC4CAQAw", f"(MC4CAQAwBQYDK2Vw{_DER})"),
        prefixed(("xprv", "zprv", "yprv"), r"[xyz]prv([1-9A-HJ-NP-Za-km-z]{100,}+)"),
    ),
)

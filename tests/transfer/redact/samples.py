"""Texts with secrets in them, and texts that only look like it.

No secret stands here in one piece: each is put together from its prefix and characters drawn with a
fixed seed, so that nothing that looks for leaked keys finds any in this file.
"""

import base64
import hashlib
import json
import random
import string
import uuid
from typing import Final

ALNUM: Final = string.ascii_letters + string.digits
WIDE: Final = ALNUM + "_-"
HEX: Final = "0123456789abcdef"
BASE32: Final = string.ascii_uppercase + "234567"
BASE64: Final = ALNUM + "+/"


def drawn(length: int, alphabet: str = ALNUM, seed: int = 7) -> str:
    """Return random characters; the first is a letter and the last is not a dash."""
    chance = random.Random(f"{length}{alphabet}{seed}")
    inside = "".join(chance.choice(alphabet) for _ in range(length - 2))
    letters = [letter for letter in alphabet if letter.isalpha()]
    return chance.choice(letters) + inside + chance.choice(letters)


def jwt(header: object = None, payload: object = None) -> str:
    """Return a JSON web token."""
    pieces = [header or {"alg": "HS" + "256", "typ": "JWT"}, payload or {"sub": "1234567890"}]
    coded = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in pieces]
    return ".".join([*coded, drawn(43, WIDE)])


def pem(kind: str = "RSA PRIVATE KEY", join: str = "\n") -> str:
    """Return a block with a private key."""
    lines = [
        f"-----BEGIN {kind}" + "-----",
        drawn(64, BASE64),
        drawn(64, BASE64, 8),
        "QUJD" + "RA==",
    ]
    return join.join([*lines, f"-----END {kind}" + "-----"])


def discord() -> str:
    """Return a Discord token: a user's id, a time, a signature."""
    number = base64.urlsafe_b64encode(b"1" + b"23456789012345678").decode().rstrip("=")
    return f"{number}.{drawn(6, WIDE)}.{drawn(38, WIDE)}"


# The detector and the secret, for secrets that are recognised by their prefix.
KEYS: Final[list[tuple[str, str]]] = [
    ("openai-key", "sk-" + drawn(48)),
    ("openai-key", "sk-" + drawn(20) + "T3Blbk" + "FJ" + drawn(20)),
    ("openai-key", "sk-" + "proj-" + drawn(156, WIDE)),
    ("openai-key", "sk-" + "svcacct-" + drawn(120, WIDE)),
    ("openai-key", "sk-" + "admin-" + drawn(120, WIDE)),
    ("openai-key", "sk-" + drawn(32, HEX)),
    ("anthropic-key", "sk-" + "ant-api03-" + drawn(93, WIDE)),
    ("anthropic-key", "sk-" + "ant-admin01-" + drawn(93, WIDE)),
    ("anthropic-key", "sk-" + "ant-oat01-" + drawn(93, WIDE)),
    ("openrouter-key", "sk-" + "or-v1-" + drawn(64, HEX)),
    ("google-key", "AI" + "za" + drawn(35, WIDE)),
    ("google-key", "ya" + "29." + drawn(120, WIDE)),
    ("google-key", "GOC" + "SPX-" + drawn(28, WIDE)),
    ("google-key", "1/" + "/0" + drawn(60, WIDE)),
    ("aws-key-id", "AK" + "IA" + drawn(16, BASE32)),
    ("aws-key-id", "AK" + "IA" + drawn(16, string.ascii_uppercase)),
    ("aws-key-id", "AS" + "IA" + drawn(16, BASE32)),
    ("github-token", "gh" + "p_" + drawn(36)),
    ("github-token", "gh" + "o_" + drawn(36)),
    ("github-token", "gh" + "s_" + drawn(36)),
    ("github-token", "gh" + "r_" + drawn(76)),
    ("github-token", "github" + "_pat_" + drawn(22) + "_" + drawn(59)),
    ("gitlab-token", "gl" + "pat-" + drawn(20, WIDE)),
    ("gitlab-token", "gl" + "rt-" + drawn(20, WIDE)),
    ("gitlab-token", "gl" + "pat-" + drawn(27, WIDE) + ".01." + drawn(9, HEX)),
    ("slack-token", "xo" + "xb-" + "123456789012-123456789012-" + drawn(24)),
    ("slack-token", "xo" + "xp-" + "123456789012-" + drawn(32)),
    ("slack-token", "xo" + "xe.xo" + "xp-1-" + drawn(60)),
    ("slack-token", "xa" + "pp-1-A012345678-1234567890123-" + drawn(64, HEX)),
    ("stripe-key", "sk_" + "live_" + drawn(24)),
    ("stripe-key", "rk_" + "live_" + drawn(99)),
    ("stripe-key", "sk_" + "test_" + drawn(24)),
    ("stripe-key", "wh" + "sec_" + drawn(32)),
    ("huggingface-token", "h" + "f_" + drawn(34)),
    ("huggingface-token", "h" + "f_" + drawn(34, string.ascii_letters)),
    ("npm-token", "np" + "m_" + drawn(36)),
    ("pypi-token", "py" + "pi-AgE" + "IcHlwaS5vcmc" + drawn(150, WIDE)),
    ("twilio-key", "S" + "K" + drawn(32, HEX)),
    ("sendgrid-key", "S" + "G." + drawn(22, WIDE) + "." + drawn(43, WIDE)),
    ("telegram-token", "123456789" + ":A" + "A" + drawn(33, WIDE)),
    ("discord-token", discord()),
    ("groq-key", "gs" + "k_" + drawn(52)),
    ("xai-key", "xa" + "i-" + drawn(80)),
    ("perplexity-key", "pp" + "lx-" + drawn(48)),
    ("replicate-token", "r" + "8_" + drawn(37)),
    ("model-key", "nv" + "api-" + drawn(64, WIDE)),
    ("model-key", "f" + "w_" + drawn(24)),
    ("model-key", "cs" + "k-" + drawn(48)),
    ("model-key", "tgp" + "_v1_" + drawn(43, WIDE)),
    ("model-key", "s" + "k_" + drawn(48, HEX)),
    ("model-key", "tv" + "ly-" + drawn(32)),
    ("model-key", "lsv" + "2_pt_" + drawn(32, HEX) + "_" + drawn(10, HEX)),
    ("cloud-key", "do" + "p_v1_" + drawn(64, HEX)),
    ("service-token", "sh" + "pat_" + drawn(32, HEX)),
    ("service-token", "da" + "pi" + drawn(32, HEX)),
    ("service-token", "hv" + "s." + drawn(90, WIDE)),
    ("service-token", "dc" + "kr_pat_" + drawn(27, WIDE)),
    ("service-token", "lin" + "_api_" + drawn(40)),
    ("service-token", "nt" + "n_" + drawn(46)),
    ("service-token", "gl" + "sa_" + drawn(32) + "_" + drawn(8, HEX)),
    ("cloud-key", "sb" + "p_" + drawn(40, HEX)),
    ("service-token", "fi" + "gd_" + drawn(40, WIDE)),
    ("service-token", "ke" + "y-" + drawn(32, HEX)),
    ("service-token", "dp" + ".pt." + drawn(43)),
    ("jwt", jwt()),
    ("jwt", jwt({"alg": "RS" + "256", "kid": "a"}, {"iss": "https://id.test", "exp": 1})),
    ("encoded-key", base64.b64encode(pem("PRIVATE KEY").encode()).decode()),
    ("age-key", "AGE-SEC" + "RET-KEY-1" + drawn(58, string.ascii_uppercase + string.digits)),
    ("private-key", pem()),
    ("private-key", pem("PRIVATE KEY")),
    ("private-key", pem("EC PRIVATE KEY")),
    ("private-key", pem("ENCRYPTED PRIVATE KEY")),
    ("private-key", pem("OPENSSH PRIVATE KEY")),
    ("private-key", pem("PGP PRIVATE KEY BLOCK")),
    ("private-key", pem(join="\\n")),
]

_LONG: Final = drawn(40, BASE64)
_TOKEN: Final = drawn(32)
_HEX: Final = drawn(32, HEX)
_BASIC: Final = base64.b64encode(b"alice:open sesame").decode()

# The detector, the text before the secret, the secret, and the text after it.
CONTEXTS: Final[list[tuple[str, str, str, str]]] = [
    ("url-password", "postgres://bob:", "s3cr3t", "@db:5432/app"),
    ("url-password", "https://bob:", "pa%40ss-word", "@host/path?x=1"),
    ("url-password", "https://x-access-token:", drawn(40), "@host/a.git"),
    ("url-password", "redis://:", "topsecret", "@cache:6379/0"),
    ("url-password", "mongodb+srv://u:", "p@ss:w0rd", "@c0.mongodb.test/db"),
    ("url-password", "amqp://guest:", "rabbit", "@[::1]:5672"),
    ("authorization", "Authorization: Bearer ", _TOKEN, "\nAccept: */*"),
    ("authorization", "Authorization: Basic ", _BASIC, ""),
    ("authorization", "-H 'authorization: token ", _HEX, "'"),
    ("authorization", '{"Authorization": "Bearer ', _TOKEN, '"}'),
    ("authorization", '{\\"Authorization\\": \\"Bearer ', _TOKEN, '\\"}'),
    ("authorization", "Proxy-Authorization: Basic ", _BASIC, "\r\n"),
    ("authorization", "sent as bearer ", _TOKEN, " in each request"),
    ("authorization", "Authorization: ", _TOKEN, ""),
    ("authorization", 'setRequestHeader("Authorization", "Basic ', _BASIC, '")'),
    ("cookie", "Cookie: ", f"theme=dark; session={_TOKEN}", "\nHost: a"),
    ("cookie", "Set-Cookie: ", f"sid={_HEX}; Path=/; HttpOnly", "\r\n"),
    ("cookie", "curl -H 'Cookie: ", f"sid={_HEX}", "' x"),
    ("command-password", "curl -u alice:", "sesame", " https://host/x"),
    ("command-password", "curl -sS -X POST --user 'alice:", "sesame", "' https://host/x"),
    ("webhook", "https://hooks.slack.com/services/", f"T012345/B012345/{drawn(24)}", " x"),
    ("webhook", "https://discord.test/api/webhooks/123456789012345678/", drawn(68), ""),
    ("azure-key", "AccountName=a;AccountKey=", drawn(86, BASE64) + "==", ";EndpointSuffix=x"),
    ("azure-key", "SharedAccessKeyName=a;SharedAccessKey=", drawn(43, BASE64) + "=", ""),
    ("url-key", "?sv=2022&sig=", drawn(43) + "%3D", "&se=2030"),
    ("password-hash", "bob:", "$2" + "b$12$" + drawn(53), ":1000"),
    ("aws-secret", "aws_secret_access_key = ", _LONG, "\n"),
    ("aws-secret", 'export AWS_SECRET_ACCESS_KEY="', _LONG, '"'),
    ("aws-secret", '"SecretAccessKey": "', _LONG, '",'),
    ("password", "password=", "hunter2", " &c"),
    ("password", "Passwort: ", "hunter2", "\n"),
    ("password", "password\uff1a", "hunter2", "\n"),
    ("password", 'password = "', "correct-horse", '"'),
    ("password", '"password": "', "swordfish", '"'),
    ("password", '{\\"passwd\\":\\"', "pa$$word1", '\\"}'),
    ("password", "DB_PASS=", "Tr0ub4dor&3"[:9], "\n"),
    ("password", "PGPASSWORD=", "x9y8z7", " psql"),
    ("password", "Pwd=", "abc!1234", ";Server=x"),
    ("password", "the password is ", "hunter2", " now"),
    ("password", "mysql --password ", "s3same!", " -h x"),
    ("password", "--password=", "s3same!", ""),
    ("password", "<password>", "s3same!", "</password>"),
    ("password", "password: str = '", "s3same!", "'"),
    ("password", "os.environ['PASSWORD'] = '", "s3same!", "'"),
    ("password", 'passphrase: "', "correct horse battery staple", '"'),
    ("password", "self.password = self.old_password = '", "s3same!", "'"),
    ("password", 'password="', "it's\\\"s3same", '"'),
    ("password", "if password == '", "s3same!", "':"),
    ("password", "user=a&password=", "s3same!", "&x=1"),
    ("secret", "api_key=", _TOKEN, "\n"),
    ("secret", 'api_key: "', _HEX, '"'),
    ("secret", "X-API-Key: ", _TOKEN, ""),
    ("secret", '"apiKey": "', _TOKEN, '"'),
    ("secret", "MISTRAL_API_KEY=", _TOKEN, ""),
    ("secret", "my API key: ", _TOKEN, ""),
    ("secret", "client_secret=", _TOKEN, "&x"),
    ("secret", 'SECRET_KEY = "', "django-insecure-" + drawn(30), '"'),
    ("secret", "refresh_token=", drawn(700), "&a=b"),
    ("secret", "auth_token => '", _HEX, "'"),
    ("secret", "--token ", _TOKEN, " run"),
    ("secret", "--api-key ", _TOKEN, " run"),
    ("secret", "token := `", _TOKEN, "`"),
    ("secret", "HEROKU_API_KEY=", str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)), ""),
]
_SHA: Final = hashlib.sha256(b"parcel").hexdigest()

# None of these contains a secret.
ORDINARY: Final[dict[str, str]] = {
    "git hash": "commit " + hashlib.sha1(b"x", usedforsecurity=False).hexdigest() + "\nAuthor: A",
    "sha256": f"sha256:{_SHA}  parcel.tar.gz",
    "integrity": "integrity sha512-" + base64.b64encode(hashlib.sha512(b"x").digest()).decode(),
    "uuid": f"id={uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)}",
    "image": "data:image/png;base64," + drawn(3_000, BASE64),
    "path": "/usr/lib/python3.11/site-packages/holdfast/backends/sqlite/statements.sql",
    "windows path": r"C:\Users\alice\secret\token\passwords_2024_final_version_2.txt",
    "long name": "test_a_secret_that_is_not_one_is_left_where_it_is_in_every_text",
    "camel case": "AbstractSingletonProxyFactoryBeanWithVeryLongName2",
    "words": "Keep this a secret: the token of my affection is the key to the pass.",
    "sk in prose": "Prefix it with sk- and see; sk-learn-compatible-estimators-and-more work.",
    "sk placeholder": "Set it to sk-... or sk-… or sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "sk words": "sk-proj-your-project-key-goes-in-here-please",
    "sk short": "sk-" + "1a2b3c4d",
    "your key": 'api_key = "YOUR_API_KEY"',
    "your key 2": "OPENAI_API_KEY=<your-api-key-1234567890>",
    "docs of Amazon": "AKIA" + "IOSFODNN7" + "EXAMPLE",
    "amazon too long": "AK" + "IA" + drawn(30, BASE32),
    "variable": "password=$PASSWORD token=${TOKEN_1234567} x",
    "shell": "password=$(pass show mail2) token=`cat token1`",
    "template": "password: {{ vault_password_1 }} token: {token_1234567890}",
    "windows variable": "password=%DB_PASSWORD1%",
    "code": "token = tokenizer.next_token2(text); password = get_password2(user)",
    "dotted": "password = settings.database2.password",
    "environment": "api_key = os.environ['API_KEY_2'] or process.env.API_KEY_2",
    "class": "private_key: ed25519.Ed25519PrivateKey, token = rfc3161.TimeStampToken",
    "function": "credentials: _convert_oauth2_credentials",
    "optional": 'authorization: Optional[str], ("authorization", "x-amz-content-sha256")',
    "annotation": "def login(password: str, token: str | None = None) -> None:",
    "counts": '{"max_tokens": 4096, "token_count": 1234567890123, "tokens": "123456789012a"}',
    "special tokens": 'pad_token="<|endoftext1234|>" eos_token: "abc123def456ghi"',
    "page token": "next_page_token=" + drawn(32) + "&pageToken=" + drawn(32),
    "keys": 'cache_key = "user-profile-v2-1234" primary_key="id_1234567890abc" key: "PROJ-12345"',
    "key words": "api_key_name: production-key-v2 secret = my-secret-name-2",
    "schema": '{"password": "string", "type": "password"}',
    "translation": '{"password": "Passwort", "forgot_password": "Forgot your password? 123"}',
    "form": 'label="Password:" placeholder="Enter your password"',
    "stars": "password=******** token: ****************",
    "nothing": 'password: null, token="None", secret=undefined',
    "env path": "PWD=/home/alice1 OLDPWD=/srv/app2",
    "secret path": 'secret: "projects/123/secrets/db-pass" token: /run/secrets/token1',
    "date": "token: 2024-01-02T03:04:05Z secret = 2024-01-02",
    "tests": "pass: 120/1400, pass = 1234567, bypass: 1a2b3c, compass = n0rth12",
    "bearer": "The bearer of this letter, bearer representation-independence-2",
    "repeated": "sk-" + "1" * 40 + " gh" + "p_" + "12" * 18,
    "not a pair": "Authorization: Basic " + base64.b64encode(b"hello").decode(),
    "basic": "Authorization: Basic authentication",
    "bearer words": "Authorization: Bearer <token>",
    "header name": "Access-Control-Allow-Headers: Authorization, Content-Type",
    "cookies": "Cookie: chocolate=yes; oats=no",
    "cookie words": "Set cookie = new Cookie(name)",
    "url": "https://example.org:8080/a:b@c?d=e@f and http://host:80/x",
    "url user": "ssh://git@github.com:22/a/b.git",
    "url placeholder": "postgres://user:password@localhost/db and http://u:${PW}@h http://u:***@h",
    "mail": "Write to alice@example.org or call +49 171 1234567.",
    "public key": "-----BEGIN PUBLIC KEY-----\n" + drawn(64, BASE64) + "\n-----END PUBLIC KEY-----",
    "certificate": "-----BEGIN CERTIFICATE-----\n" + drawn(64, BASE64),
    "talk of keys": "between `-----BEGIN PRIVATE KEY-----` and `-----END PRIVATE KEY-----` lines",
    "three dots": "eyJ" + "hbGciOi.not-a-token-at-all.but-three-pieces-long",
    "versions": "package-1.2.3-SNAPSHOT-20240102.030405-6.jar",
    "telegram-like": "12345678:AB" + drawn(33),
    "discord-like": "Mississippi-river-boats-xx.yellow.and-a-very-long-line-of-them",
    "hf": "hf_hub_download 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",
    "npm": "npm_config_registry npm_lifecycle_event npm_package_version",
    "ghp": "ghp_" + "x" * 36 + " gho_short",
    "slack": "xoxb-token xox-what",
    "hook": "https://hooks.slack.com/services/T00/B00/XXX",
    "curl": "curl -u alice https://host:80/x; curl -u $USER:$TOKEN x; curl https://a:80",
    "mark": "password=[redacted: password] and token: [redacted: secret]",
    "gl": "glob-pattern-with-many-words-in-it-and-more glance-at",
    "key dash": "key-value-store-with-a-long-name-and-more",
    "dapi": "dapi-endpoint-configuration-settings",
    "chinese": "快递员拿到了包裹密码是什么",
    "control": "\x00\x1b[31mred\x1b[0m \ud800 \udfff password",
}
PERSONAL: Final[list[tuple[str, str, str, str]]] = [
    ("email", "Write to ", "alice.b+c@mail.example.org", "."),
    ("email", "<", "a_b@x.de", ">"),
    ("phone", "call ", "+49 171 1234567", " now"),
    ("phone", "call ", "+14155550123", ""),
    ("phone", "", "(415) 555-0123", " x"),
    ("phone", "tel ", "415-555-0123", ","),
    ("phone", "Tel. ", "0171 1234567", ""),
]
IMPERSONAL: Final = [
    "user@host, @decorator, a@b, 2024-01-02 03:04:05, 192.168.100.200, 1234567890",
    f"{_SHA} {uuid.UUID(int=5)} 1,234,567,890 v1.2.3-456-789 3.14159265358979",
    "seq 100-200-300 and 12:34:56.789012 and 0.171 1234567",
]
# Repeated prefixes of secrets: no pattern may need more than linear time.
NEAR_MISSES: Final = [
    *("sk-", "sk-ant-", "sk-proj-", "ghp_", "-ghp_", "AIza", "-AIza", "xoxb-", "eyJ", "-eyJ"),
    *(".eyJ", "eyJaaaaaaaaaaaaaaaa.", "SG.", "SG.aaaaaaaaaaaaaaaaaaaa.", "M", "-M", "1", "AKIA"),
    *("MMMMMMMMMMMMMMMMMMMMMMMMMMM.", "1234567890:AA", "-AKIA", "whsec_", "glpat-", "pypi-AgE"),
    *("1//0", "ya29.", "hvs.", "dp.pt.", "key-a", "-----BEGIN PRIVATE " + "KEY-----", "-----"),
    *("-----BEGIN RSA PRIVATE " + "KEY-----\n" + "A" * 64 + "\n", "- ", "://", "://a:", "://a:@@"),
    *("password=", "password='", 'password="', 'password=\\"', "password=\"password='", "pass"),
    *("token: a ", "token: aaaaaaaaaaaaaaaa", "token:a1b2c3d4", "api_key=", "key", "accountkey="),
    *("authorization:", "authorization: basic ", "bearer ", "cookie=", "cookie: a=b; ", "sig="),
    *(
        "curl ",
        "curl -u ",
        "curl -u a:",
        "hooks.slack.com/services/",
        "/webhooks/123456789012345678/",
        "a@",
        "a.",
        "a@a.",
        "+1 ",
    ),
    *("(12)", "0123 ", "\\n", "--token ", "<password>", "[redacted: ", "password: a b c d"),
    *("token is ", "secret_access_key=", "password: str = ", "password:    ", "password    ", "x"),
    *(" -p", "mysql -p", " -u a:", "$", "$6$a", "$6$" + "a" * 30, "pbkdf2_sha256$a$"),
    *("|password", "| password |\n|---|\n| a1b2c3d |\n", "password|a\n--|--\n", '"kty"', '{"kty"'),
    *('{"kty"}', "machine a.b login ", "login a\n", "a_password: ", "a_", "_PASSWORD=abcdef "),
    *("&code=a", "signature=", "\\u0041", "\u200b", "%41", "&amp;", "\x1b[0m", "echo a | "),
    *("user=a password=abcdef ", "mnemonic abc ", "password, value: abcdef ", "-user a:"),
    *("://" + "a" * 24 + "1@", "MIIEa1IBAA", "LS0tLS1CRUdJTi", "xprv", "sk-proj-A1a", "aAIza"),
    *("Q~", "AZDO", ":::", "private-lines: 1\n", ":*:a:b:", "-a --password abcdef ", "密码"),
    *("create password '", "<td>password</td><td>", "**password:** ", "api key a", "_session=a"),
]

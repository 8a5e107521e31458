"""Texts without a secret, of the kinds that conversations with agents are full of.

Numbers, hashes, public keys, code, documentation of passwords, forms and schemas: redaction must
change none of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import uuid
from typing import Final

from tests.transfer.redact.samples import ALNUM, BASE64, HEX, WIDE, drawn
from tests.transfer.redact.tool_output import WITHOUT_SECRETS

_SHA1: Final = hashlib.sha1(b"commit", usedforsecurity=False).hexdigest()
_SHA256: Final = hashlib.sha256(b"layer").hexdigest()
_SHA512: Final = base64.b64encode(hashlib.sha512(b"package").digest()).decode()
_MD5: Final = hashlib.md5(b"file", usedforsecurity=False).hexdigest()
_UUID: Final = str(uuid.UUID(_MD5))
_IMAGE: Final = base64.b64encode(random.Random(3).randbytes(3_000)).decode()
_URLSAFE_DATA: Final = base64.urlsafe_b64encode(random.Random(4).randbytes(30_000)).decode()
_CERTIFICATE: Final = "\n".join(
    [
        "-----BEGIN CERTIFICATE-----",
        "MIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYDVQQGEwJJ",
        *(drawn(64, BASE64, seed) for seed in range(8)),
        "-----END CERTIFICATE-----",
    ]
)

_DOCUMENTATION: Final = (
    "Set `password` to your-password-here before you start.",
    "password: your-password-here\n",
    "DB_PASSWORD=your-password-here\nDB_HOST=localhost\n",
    "DB_PASSWORD=changeme\n",
    "DB_PASSWORD=change_me_please\n",
    "DB_PASSWORD=\nDB_HOST=localhost\n",
    "DB_PASSWORD=<password>\n",
    "DB_PASSWORD=${DB_PASSWORD:-postgres}\n",
    "POSTGRES_PASSWORD=password\n",
    "MYSQL_ROOT_PASSWORD=example\n",
    "MYSQL_PASSWORD: ${MYSQL_PASSWORD}\n",
    "password: $DB_PASSWORD\n",
    "password: !vault |\n",
    "password: {{ db_password }}\n",
    "password: ENC(...)\n",
    "password: '***'\n",
    "password: null\npassword: ~\npassword: true\n",
    "password: string\npasswordConfirm: string\n",
    "The password must have 8 characters, a digit and a symbol.",
    "Password: at least 12 characters",
    "Password requirements: 8-64 characters, one digit",
    "**Password:** required\n**Token:** optional\n",
    "**Password**: the password of the user, at least 8 characters long.",
    (
        "| Field | Type | Required |\n|---|---|---|\n| password | string | yes |\n| "
        "token | string | no |\n"
    ),
    "| Option | Default |\n|---|---|\n| password | none |\n| token | empty |\n",
    "| user | password |\n|------|----------|\n| bob | ******** |\n| ann | (hidden) |\n",
    "| user | password | since |\n|---|---|---|\n| bob | required | 2024-01-02 |\n",
    (
        "| Feature | Password | Token |\n|---|---|---|\n| expires | yes | no |\n| "
        "length | 8-64 | 32 |\n"
    ),
    "| key | value |\n|---|---|\n| color | #ff8800 |\n| size | 12px |\n",
    "## Password\n\nEnter the password that you chose when you signed up.\n",
    "Wrong password. Please try again, or reset your password.",
    "password: incorrect\n",
    "Passwords are hashed with bcrypt, cost 12, and never stored.",
    "bcrypt hashes begin with $2b$12$ and have 60 characters; argon2 ones with $argon2id$v=19$.",
    "Use `mysql -p` and type the password; `mysql -p shop` asks too.",
    "mysql -u root -p shop < dump.sql\n",
    "mysql -u root -p\n",
    "docker run -p 8080:80 -p 5432:5432 nginx\n",
    "docker login -u bob --password-stdin < token.txt\n",
    "docker login -u $USER -p $TOKEN\n",
    "docker login -u bob -p <password>\n",
    "ssh -p 2222 bob@host; scp -P 2222 a b:; mkdir -p /srv/data/app1\n",
    "sshpass -p $SSHPASS ssh host; sshpass -f file ssh host; sshpass -e ssh host\n",
    "curl -u $USER:$PASSWORD https://api.test; curl -u bob https://api.test\n",
    "curl -X POST https://api.test/users/12345678/tokens -d @body.json\n",
    "redis-cli -h localhost -p 6379 ping; redis-cli -a $REDIS_PASSWORD\n",
    "PGPASSWORD=$PGPASSWORD psql -h db -U bob shop\n",
    "PGPASSWORD=${PGPASSWORD:?} pg_dump; PGPASSWORD= psql\n",
    "zip -r a.zip src; unzip -p a.zip file | head; 7z a -pass b\n",
    "sudo -S true; echo done | sudo -S tee /etc/x\n",
    "machine learning login page password field\n",
    "machine HOST login USER password PASSWORD\n",
    "the machine needs a login and a password reset\n",
    "hostname:port:database:username:password\n",
    "12:30:45:100:200 and 1:2:3:4:5 and 00:1a:2b:3c:4d:5e\n",
    "localhost:5432 and db:5432:open and 127.0.0.1:5432/shop\n",
    "https://user@host/path and https://john.doe@mail.test@host and git@github.com:a/b.git\n",
    "https://your-token@github.com/a/b.git and https://<token>@github.com/a/b.git\n",
    "https://${GITHUB_TOKEN}@github.com/a/b.git; https://x-access-token:${T}@github.com\n",
    "ssh://deploy-user-of-the-frontend-team@host.test:22/a\n",
    "https://api.test/v1?key=YOUR_API_KEY&q=Oslo",
    "https://api.test/v1?key=<key>&sig=<signature>",
    "https://docs.test/search?key=product-name-asc&sort=asc",
    "https://www.test/watch?v=dQw4w9WgXcQ&list=PLrAXtmErZgOeiKm4sgNOknGvNjby9efdf",
    f"https://app.test/d/{_UUID}/edit?id={_UUID}&rev={_SHA1}",
    "https://docs.test/document/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/edit#gid=0",
    "https://shop.test/p/B08N5WRWNW?ref=pd_sl_7j18redljs_e&tag=abc-20&linkCode=ogi&th=1",
    "https://cdn.test/app.3f2a9c1b.js?v=20240102030405&hash=5d41402abc4b2a76b9719d911017c592",
    "https://login.test/authorize?response_type=code&client_id=web&state=xyz&scope=openid",
    "Send `Authorization: Bearer <token>` or `Authorization: Basic <credentials>`.",
    "Authorization: Bearer YOUR_TOKEN\nX-API-Key: YOUR_API_KEY\n",
    "Authorization: Bearer $TOKEN\nAuthorization: Bearer {token}\n",
    "The `Signature=` parameter is a hash; X-Amz-Signature=<64 hex digits>.",
    "A JWT looks like xxxxx.yyyyy.zzzzz: header, payload, signature.",
    'eyJhbGciOi... is how every JWT begins; eyJ is `{"` in base64.',
    "A Notion key is secret_ and 43 characters; an Airtable token pat... and a dot.",
    "Keys of GitHub begin with ghp_, gho_, ghu_, ghs_; keys of GitLab with glpat-.",
    "AKIA and ASIA are prefixes of access key ids; AKIAIOSFODNN7EXAMPLE is the one in the docs.",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "sk-ant-api03-... goes into ANTHROPIC_API_KEY; sk-proj-... into OPENAI_API_KEY.",
    "OPENAI_API_KEY=sk-your-key-here\nANTHROPIC_API_KEY=sk-ant-your-key-here\n",
    "api_key: str = Field(..., description='The API key')",
    "API key: see 1Password; token: ask Ann; password: in the vault.",
    "token: see the wiki page on tokens\nsecret: none of your business\n",
)
_SCHEMAS: Final = (
    '{"password": {"type": "string", "minLength": 8}, "token": {"type": "string"}}',
    '{"type": "object", "properties": {"password": {"type": "string", "format": "password"}}}',
    '{"password": "Passwort", "token": "Zugangsschlüssel", "secret": "Geheimnis"}',
    '{"error": "invalid password", "code": "WRONG_PASSWORD_3"}',
    '{"password": "", "token": null, "secret": false}',
    '{"password_reset_url": "/users/password/reset", "token_type": "bearer", "expires_in": 3600}',
    '{"usage": {"prompt_tokens": 12345, "completion_tokens": 678, "total_tokens": 13023}}',
    '{"max_tokens": 4096, "stop_token": "<|end|>", "tokenizer": "cl100k_base"}',
    '{"key": "ArrowLeft", "code": "KeyA", "keyCode": 37}',
    '{"key": "user:12345678:profile", "value": "cached-profile-v2"}',
    '{"primary_key": "id", "foreign_key": "user_id_2", "sort_key": "created_at"}',
    f'{{"id": "{_UUID}", "etag": "{_MD5}", "sha": "{_SHA1}"}}',
    f'{{"integrity": "sha512-{_SHA512}", "resolved": "https://registry.test/a/-/a-1.2.3.tgz"}}',
    f'"node_modules/a": {{"version": "1.2.3", "integrity": "sha512-{_SHA512}", "license": "MIT"}}',
    f"a@1.2.3:\n  resolution: {{integrity: sha512-{_SHA512}}}\n",
    f"a==1.2.3 \\\n    --hash=sha256:{_SHA256} \\\n    --hash=sha256:{_SHA256}\n",
    f'checksum = "{_SHA256}"\n',
    f"github.com/a/b v1.2.3 h1:{base64.b64encode(hashlib.sha256(b'go').digest()).decode()}\n",
    f"image: nginx@sha256:{_SHA256}\n",
    f"sha256~ is a prefix; sha256:{_SHA256}\n",
    "type: password\nname: password\nautocomplete: current-password\n",
    (
        "components:\n  schemas:\n    Login:\n      properties:\n        password:\n    "
        "      type: string\n"
    ),
    "password:\n  min_length: 12\n  max_age_days: 90\n  hash: argon2id\n",
    "username: string\npassword: string\nrole: admin\n",
    "password: hashed\npassword: encrypted\npassword: required|min:8\n",
    "de:\n  password: Passwort\n  forgot_password: Passwort vergessen\n",
    "fr:\n  password: Mot de passe\nes:\n  password: Contraseña\n",
    "nl:\n  password: wachtwoord\nsv:\n  password: lösenord\nda:\n  password: adgangskode\n",
    "CREATE TABLE users (id serial, password varchar(255) NOT NULL, token text);",
    "password VARCHAR(60) NOT NULL, api_key CHAR(40), secret BYTEA\n",
    "ALTER USER bob WITH PASSWORD :password; CREATE USER ann IDENTIFIED BY ?;",
    "SELECT password, token FROM users WHERE password = crypt($1, password);",
    '<input type="password" name="password" value="" placeholder="Your password">',
    '<input type="password" id="password" autocomplete="new-password" minlength="8">',
    '<label for="password">Password</label><td>Password</td><td>Token</td>',
    "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db-credentials-v2\ntype: Opaque\n",
    "secretKeyRef:\n  name: db-credentials\n  key: password\n",
    "envFrom:\n  - secretRef:\n      name: app-secrets-2024\n",
    "secretName: wildcard-tls-2024\nserviceAccountName: builder-7\n",
    f"client-certificate-data: {base64.b64encode(_CERTIFICATE.encode()).decode()}\n",
    f"certificate-authority-data: {base64.b64encode(_CERTIFICATE.encode()).decode()}\n",
)
_CODE: Final = (
    (
        "def check(password: str, hashed: bytes) -> bool:\n    return "
        "bcrypt.checkpw(password, hashed)\n"
    ),
    "password = getpass.getpass()\ntoken = secrets.token_urlsafe(32)\n",
    "password = input('Password: ')\n",
    "password = config['database']['password']\n",
    "connect(host=host, user=user, password=password, port=5432)\n",
    "connect(\n    user=user,\n    password=password\n)\n",
    "connect(\n    user=user,\n    password=passwd,\n    token=token,\n)\n",
    "self.password = password\nself._token = token or self._fetch_token()\n",
    "const password = process.env.DB_PASSWORD;\nlet token = null;\n",
    "interface Login {\n  username: string\n  password: string\n  token?: string\n}\n",
    (
        'type Login struct {\n\tPassword string `json:"password"`\n\tToken    string '
        '`json:"token"`\n}\n'
    ),
    "if (password !== confirmation) { setError('passwords do not match'); }\n",
    "const { password, ...user } = row; return { ...user, password: undefined };\n",
    "token = next(tokens)\nwhile token.kind != Token.EOF:\n    token = lexer.next_token2()\n",
    "let key = event.key; if (key === 'Enter') submit();\n",
    "for key, value in os.environ.items():\n    if key.endswith('_KEY'): continue\n",
    'cacheKey := fmt.Sprintf("user:%d:profile:%s", id, version2)\n',
    "PRIMARY_KEY = 'id'; SORT_KEY = 'created_at_2'; KEY_LENGTH = 32\n",
    'public static final String PASSWORD_KEY = "password"; TOKEN_KEY = "token";\n',
    '@Value("${spring.datasource.password}") private String password;\n',
    'echo "::add-mask::$TOKEN"; echo "token=$(cat token)" >> "$GITHUB_OUTPUT"\n',
    "env:\n  GITHUB_TOKEN: ${{ secrets.GITHUB_TOKEN }}\n  NPM_TOKEN: ${{ secrets.NPM_TOKEN }}\n",
    'password=$(openssl rand -base64 24); export PGPASSWORD="$password"\n',
    "read -s -p 'Password: ' password\nPASSWORD=$1\n",
    (
        'variable "db_password" {\n  type      = string\n  sensitive = '
        "true\n}\npassword = var.db_password\n"
    ),
    'resource "random_password" "db" {\n  length = 24\n}\npassword = random_password.db.result\n',
    (
        '!function(e,t){"object"==typeof '
        "exports?module.exports=t():e.key=t()}(this,(function(){var e=1}));"
    ),
    (
        "var a=e.password,b=e.token;return a&&b?n(a,b):void "
        '0}},{key:"render",value:function(){return 1}}'
    ),
    (
        'r.d(t,"a",(function(){return o})),t.apiKey=o.apiKey,t.token=function(e){return '
        "e.t||i.token()}"
    ),
    f"//# sourceMappingURL=data:application/json;base64,{_IMAGE[:800]}",
    "assert response.json() == {'token_type': 'bearer', 'expires_in': 3600}\n",
    "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n",
    "openssl genpkey -algorithm ed25519 -out key.pem; openssl rsa -in key.pem -passin env:PW\n",
    "ssh-keygen -t ed25519 -C bob@host -f ~/.ssh/id_ed25519 -N ''\n",
    "kubectl create secret generic db --from-literal=password=$PW --from-file=token.txt\n",
    "gh auth login --with-token < token.txt; gh secret set NPM_TOKEN\n",
    "git commit -m 'Rotate the password and the api key'; git push --force-with-lease\n",
    "pass insert mail/bob; pass: 12 failed: 3; bypass=true2; compass: north-east7\n",
    "keyboard: qwerty-us-intl2; monkey: banana12345678; turkey=gobble1234567\n",
    "tokenize('a1b2c3'); tokenizer: bert-base-uncased; detoken: no\n",
    (
        'Traceback (most recent call last):\n  File "/srv/app/password.py", line 42, in '
        "check_password\n"
    ),
    "KeyError: 'password'\nValueError: token: 'abc' is not valid\n",
    "2024-01-02T03:04:05Z INFO auth password=*** token=<hidden> user=bob id=8f14e45f\n",
    "password = '%s' % password; token = f'{token}'; secret = \"${SECRET}\"\n",
    "PASSWORD_HASHERS = ['django.contrib.auth.hashers.Argon2PasswordHasher']\n",
    "AUTH_PASSWORD_VALIDATORS = [{'NAME': 'django.contrib.auth.password_validation.X'}]\n",
    "password_field = 'password1'; password_confirmation: password2\n",
    "task-4f3c2b1a0d9e8f7a6b5c4d3e2f1a0b9c and desk-0123456789abcdef0123456789abcdef\n",
    "risk-proj-2024-alpha-release-candidate and disk-admin-tools-version-2024-x\n",
)
_DATA: Final = (
    f"commit {_SHA1}\nparent {_SHA1[::-1]}\n",
    f"{_SHA1[:7]}..{_SHA1[8:15]} main -> main; index {_SHA1[:10]}..{_SHA1[10:20]} 100644\n",
    f"{_SHA256}  holdfast-1.0.tar.gz\n{_MD5}  holdfast-1.0.zip\n",
    f"Digest: sha256:{_SHA256}\nStatus: Downloaded newer image\n",
    f"session {_UUID} took 12.3 s; request-id: {_UUID}; trace {_MD5}\n",
    f'x-request-id: {_UUID}\nx-amzn-trace-id: Root=1-{_MD5[:8]}-{_MD5[8:]}\netag: "{_MD5}"\n',
    f"![shot](data:image/png;base64,{_IMAGE})",
    _IMAGE,
    _URLSAFE_DATA,
    (
        f'<svg><path d="M12 2C6.48 2 2 6.48 2 12s4.48 10 10 10"/></svg> '
        f"data:font/woff2;base64,{_IMAGE[:900]}"
    ),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + drawn(43, BASE64) + " bob@host\n",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC" + drawn(360, BASE64) + " bob@host\n",
    "github.com ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAI" + drawn(100, BASE64),
    "256 SHA256:" + drawn(43, BASE64) + " bob@host (ED25519)\n",
    _CERTIFICATE,
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA"
    + drawn(300, BASE64)
    + "\n-----END PUBLIC KEY-----\n",
    "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQENBF" + drawn(58, BASE64) + "\n",
    "-----BEGIN PGP SIGNATURE-----\n\niQEzBAABCAAdFiEE" + drawn(48, BASE64) + "\n",
    "-----BEGIN CERTIFICATE REQUEST-----\nMIICijCCAXICAQAwRTELMAkG" + drawn(40, BASE64),
    "age1" + drawn(58, "023456789acdefghjklmnpqrstuvwxyz") + " is the public half",
    "PublicKey = " + drawn(43, BASE64) + "=\nEndpoint = 10.0.0.1:51820\n",
    "bitcoin:1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa?amount=0.1",
    "2,4,6-trinitrotoluene; N,N-dimethylacetamide; (2R,3S)-2,3-dihydroxybutanedioic acid",
    (
        "InChI=1S/C8H10N4O2/c1-10-4-9-6-5(10)7(13)12(3)8(14)11(6)2/h4H,1-3H3 "
        "RYYVLZVUVIJVGH-UHFFFAOYSA-N"
    ),
    "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVVHSLAKWKRQ",
    "ACGTACGTTAGCTAGCTAGGATCGATCGATCGGCTAGCTAGCTAGGCTA",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt.",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "Write to nora.lund+news@fjord-mail.no or press@shop.test; DE89 3704 0044 0532 0130 00",
    "ISBN 978-3-16-148410-0, DOI 10.1038/s41586-020-2649-2, arXiv:2307.09288v2",
    "arn:aws:iam::123456789012:role/service-role/lambda-exec-7f3k2j1h",
    "i-0abcd1234efgh5678 subnet-0a1b2c3d4e5f67890 vpc-0f9e8d7c6b5a43210 ami-0c55b159cbfafe1f0",
    "projects/my-project-12345/locations/europe-west1/keyRings/ring1/cryptoKeys/key1",
    "price_1MoBy5LkdIwHu7ixZhnattbh prod_NffrFeUfNV2Hib cus_NffrFeUfNV2Hib pk_test_TYooMQauvdEDq54",
    "msg_01XFDUDYJgAACzvnptvVoYEL call_abc123DEF456ghi789JKL toolu_01A09q90qw90lq917835lq9",
    "chatcmpl-123abcDEF456ghi789JKL012mno req_011CSHoEeqs5C35K2UUqR7Fy run_abc123DEF456",
    "v1.29.3-gke.1282000 1.2.3-beta.4+build.20240102.sha.5114f85 2024.01.02-rc1",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA 0000000000000000000000000000000000000000",
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/",
    "1234567890qwertyuiopasdfghjklzxcvbnm",
    "font-family:-apple-system,BlinkMacSystemFont,'Segoe UI';margin:0 12px;color:#3f2a9c1b",
    ".MuiButton-root-123.MuiButton-containedPrimary-456{transition:background-color 250ms}",
    "webpack://_N_E/./node_modules/next/dist/build/webpack/loaders/next-client-pages-loader.js",
    "rgba(12,34,56,.78) translate3d(0,0,0) cubic-bezier(.25,.46,.45,.94)",
    "Q2hhcHRlciBPbmU6IFRoZSBCb3kgV2hvIExpdmVk",
    json.dumps({"embedding": [0.0123456789, -0.9876543211, 3.14159e-05], "index": 12}),
    (
        "192.168.100.200:8080 fe80::1ff:fe23:4567:890a 00:1A:2B:3C:4D:5E "
        "550e8400-e29b-41d4-a716-446655440000"
    ),
    "$1,234.56 $2 billion $6 million $5.99/month $y = $x$ and $E=mc^2$ and $1$ $2$ $6$",
    "Costs: $2b in 2024, $6bn in 2025; regex ^\\$2[aby]\\$\\d+\\$; jQuery('$1$2$3')",
    "🔑 The key to success 🗝️ is a good password manager \u200d👨\u200d👩\u200d👧 \ufe0f",
    "Soft\u00adhyphen\u00adated words and zero\u200bwidth\u200bspaces, and \x1b[31mred\x1b[0m text",
    '%E2%9C%93 %20 100%25 of caf%C3%A9 &amp; &quot;quoted&quot; \\u00e9\\n\\t\\"x\\"',
    "C:\\new\\token\\table\\users\\bob \\\\server\\share\\passwords.xlsx",
    (
        "\u5bc6\u7801\u5fc5\u987b\u81f3\u5c11\u516b\u4e2a\u5b57\u7b26\u3002 "
        "\u5bc6\u7801\uff1a\u5fc5\u586b"
    ),
    "Passwort: mindestens 8 Zeichen; Kennwort vergessen? mot de passe : obligatoire",
    "The secret of the key is the token: a pass, a word, a password.",
    "keywords: password, token, secret, api-key, credentials\n",
    "Password → Settings → Security; Token \u2013 a unit of text; API key \u2013 see above\n",
    "seed phrase: twelve or twenty four words, written on paper and kept in a safe place\n",
    drawn(4_000, ALNUM[:26] + " .,"),
    drawn(3_000, HEX),
    drawn(64, WIDE),
)
# Written after the rules.
_LATER: Final = (
    "The password is required.",
    "password is valid",
    "the password is incorrect and",
    "Password: Required",
    "password: <your password>",
    "pass: true",
    "pass: all tests green",
    "password=…",
    "token is expired",
    "the token is invalid",
    "secret: true",
    "password is stored hashed in the database",
    "Enter password: ",
    "Password for bob: ",
    "password reset requested by alice2",
    "user/password authentication",
    "key: value",
    "api key is missing",
    "the API key is invalid",
    "passwordless login",
    "--password option",
    "use --password instead",
    "mysql -p mydatabase2",
    "ssh -p 2022 host",
    "cp -p file1 file2",
    "tar -pxzf a.tgz",
    "grep -p pattern1",
    "redis-cli -a",
    "docker login ghcr.io -u bob",
    "docker run -p 127.0.0.1:8080:80 image1",
    "SELECT * FROM users WHERE password='x'",
    "create table password_resets2",
    "set password policy2",
    "echo hello1 | sudo tee /etc/x",
    "echo hello123 | sudo -u bob cat",
    "curl -u",
    "commit 1a2b3c4d: fix password: use bcrypt",
    "password: useForm",
    "password: z.string().min(8)",
    "password: Yup.string()",
    "password: '',",
    "password: faker.internet.password()",
    "token: jwt.sign(payload, key1)",
    "export const API_KEY = import.meta.env.VITE_API_KEY",
    "password=form.password.data",
    "password=hash_password(pw1)",
    "user.password = User.hash(password1)",
    "DB_PASSWORD: process.env.DB_PASSWORD",
    "password: ENV['DB_PASSWORD']",
    "password: <%= ENV['X_PASSWORD1'] %>",
    "POSTGRES_PASSWORD: ${POSTGRES_PASSWORD:?err}",
    "POSTGRES_PASSWORD_FILE=/run/secrets/pw1",
    "requirepass foobared",
    "sk-learn",
    f"https://github.com/a/b/commit/{_SHA1}",
    "https://x.test/?session=abc123def456",
    "https://x.test/?key=value1&code=200",
    "?code=en-US&lang=en",
    "https://a.b/c?utm_source=x&sig=abc",
    "Signature=abc",
    "signature=valid",
    "<td>Password</td><td>Required</td>",
    "| password | min 8 |",
    "| token | string | The token |",
    "| password | optional |",
    "machine: x86_64 login: root",
    "login: bob\npassword reset",
    "Authorization header",
    "basic usage: foo",
    "Basic SGVsbG8gV29ybGQ=",
    "auth: enabled1",
    "auth=true",
    '"auth": "required"',
    "secret_santa: bob12345",
    "key-0123456789",
    "$6 off",
    "cost $1$2",
    "$HOME/$USER/$PATH",
    "$2a$",
    "pbkdf2_sha256$",
    "password_hash: argon2id",
    "hash: $argon2id",
    "client-key-data: <base64>",
    "token_type: Bearer",
)
HARMLESS: Final[tuple[str, ...]] = (
    *_DOCUMENTATION,
    *_SCHEMAS,
    *_CODE,
    *_DATA,
    *_LATER,
    *WITHOUT_SECRETS,
)

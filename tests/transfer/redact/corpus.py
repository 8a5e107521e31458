"""Realistic secrets and harmless texts, and how redaction fares with them.

`python -m tests.transfer.redact.corpus` prints how many secrets were kept and how many harmless
texts were changed. No secret stands here in one piece: each is put together from its prefix and
characters drawn with a fixed seed, so that nothing that looks for leaked keys finds any here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import string
import sys
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.transfer.redact.secrets import detectors_named, redact_text
from tests.transfer.redact.harmless import HARMLESS
from tests.transfer.redact.samples import ALNUM, BASE32, BASE64, HEX, WIDE, drawn, jwt, pem
from tests.transfer.redact.tool_output import WITH_SECRETS

UPPER: Final = string.ascii_uppercase + string.digits
BASE58: Final = "".join(char for char in ALNUM if char not in "0OIl")
LOWER: Final = string.ascii_lowercase + string.digits
_WINDOW: Final = 12  # So many characters in a row of a secret are a leak.


class Case(NamedTuple):
    """A secret in its context."""

    kind: str
    before: str
    secret: str
    after: str

    @property
    def text(self) -> str:
        """The whole text."""
        return self.before + self.secret + self.after


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _uuid(number: int) -> str:
    return str(uuid.UUID(bytes=hashlib.md5(bytes([number]), usedforsecurity=False).digest()))


_PW: Final = "kT9" + "#vLq2" + "wZ"
_PW2: Final = "Sommer" + "2024!"
_WORD: Final = "sword" + "fish"
_WORDY: Final = "correct" + "horse" + "battery"
_TOKEN: Final = drawn(40)
_HEX32: Final = drawn(32, HEX)
_HEX64: Final = drawn(64, HEX)
_B64: Final = drawn(43, BASE64) + "="
_URLSAFE: Final = drawn(43, WIDE)


def _cases(kind: str, *cases: tuple[str, str, str]) -> list[Case]:
    return [Case(kind, *case) for case in cases]


# ------------------------------------------------------------------------------------- files

_NETRC: Final = _cases(
    "netrc",
    ("machine api.heroku.test\n  login bob@mail.test\n  password ", drawn(36, LOWER), "\n"),
    ("machine git.test login bob password ", _PW, "\n"),
    ("machine ftp.test login bob password ", _WORD, " macdef init\n"),
    ("default login anonymous password ", _WORDY, "\n"),
    ("machine h\nlogin bob\naccount staff\npassword ", _PW2, "\nmachine i\n"),
    ("machine files.test password ", _PW, " login bob\n"),
)
_PGPASS: Final = _cases(
    "pgpass",
    ("db.test:5432:shop:bob:", _PW, "\n"),
    ("*:*:*:postgres:", _WORD, "\n"),
    ("localhost:5433:*:app:", _WORDY, "\nother:5432:a:b:$PW\n"),
    ("# hostname:port:database:username:password\n10.0.0.5:6432:shop:bob:", _PW2, "\n"),
)
_MARKDOWN: Final = _cases(
    "markdown",
    ("**Password:** ", _PW, "\n"),
    ("**Password**: ", _PW2, "\n"),
    ("**Password:** `", _WORD, "`\n"),
    ("- *Password:* ", _PW, "\n"),
    ("__Password:__ ", _PW2, "\n"),
    ("### Password\n`", _PW, "`\n"),
    ("| Field | Value |\n|---|---|\n| User | bob |\n| Password | ", _PW, " |\n"),
    ("| **Password** | `", _WORD, "` |\n"),
    ("| api key | ", _TOKEN, " |\n"),
    ("| user | password |\n|------|----------|\n| bob | ", _PW, " |\n"),
    ("| host | user | password | note |\n|:--|---|---|---|\n| a | bob | ", _PW2, " | old |\n"),
    ("user | password\n--- | ---\nann | `x1`\nbob | ", _PW, "\n"),
    ("| name | token |\n| --- | --- |\n| ci | ", _TOKEN, " |\n"),
    ("* **API Key:** ", _TOKEN, "\n"),
    ("**Token** \u2013 ", _TOKEN, "\n"),
    ("Password → ", _PW, "\n"),
    ("<td>Password</td><td>", _PW, "</td>"),
    ("<b>Password:</b> ", _PW2, "<br>"),
)
_ENV: Final = _cases(
    "env",
    ("DB_PASSWORD=", _WORD, "\nDB_HOST=localhost\n"),
    ("export DB_PASSWORD=", _WORDY, "\n"),
    ("HOST=a\nPOSTGRES_PASSWORD=", _WORD, "\r\nUSER=b\n"),
    ("MYSQL_ROOT_PASSWORD=", _WORDY, ""),
    ("ENV REDIS_PASSWORD=", _WORD, "\n"),
    ("SMTP_PASS=", _WORDY, " # mail\n"),
    ("set ADMIN_PWD=", _WORD, "\r\n"),
    ("spring.datasource.password=", _WORD, "\n"),
    ("[client]\nuser=root\npassword=", _WORD, "\n"),
    ("$env:DB_PASSWORD = '", _PW, "'\n"),
    ("PASSWORD=", _WORDY, "\n"),
    ("BASIC_AUTH_PASSWORD='", _WORD, "'\n"),
    ("KEYSTORE_PASSWORD=", "let" + "me" + "innow", "\n"),
    ("ADMIN_PASSWORD=", "39" + "471" + "882", "\n"),
    ("DB_PASSWORD=", "Sword" + "fish", "\n"),
    ('{"log": "DB_PASSWORD=', _WORD, '\\nDB_HOST=x"}'),
)
_YAML: Final = _cases(
    "yaml",
    ("database:\n  user: bob\n  password: ", _WORD, "\n  host: x\n"),
    ("db_password: ", _WORDY, "\n"),
    ("  - name: DB_PASSWORD\n    value: ", _WORD, "\n"),
    ("environment:\n  - POSTGRES_PASSWORD=", _WORD, "\n"),
    ("environment:\n  MYSQL_PASSWORD: ", _WORDY, "\n"),
    ("admin_pass: ", _WORD, " # todo\n"),
    ("production:\n  secret_key_base: ", drawn(128, HEX), "\n"),
    ("apiVersion: v1\nkind: Secret\ndata:\n  password: ", _b64("sesame-7Q"), "\n"),
    ("kind: Secret\ndata:\n  db-password: ", _b64("sw0rdfish-of-the-sea"), "\n"),
    ("ansible_become_pass: ", _WORD, "\n"),
    ("password: >-\n  ", _PW, "\n"),
    ("redis:\n  requirepass: ", _WORD, "\n"),
    ("smtp:\n  smtp_password: '", _WORD, "'\n"),
    ("jwt_secret: ", _WORDY + "staple", "\n"),
    ("client_secret: ", _URLSAFE, "\n"),
    ("encryption_key: ", _B64, "\n"),
)
_KUBE: Final = _cases(
    "kube",
    ("    client-key-data: ", _b64(pem()), "\n"),
    ("    client-key-data: ", _b64(pem("EC PRIVATE KEY")), "\n"),
    ("  tls.key: ", _b64(pem("PRIVATE KEY")), "\n"),
    ("users:\n- name: ci\n  user:\n    token: ", _TOKEN, "\n"),
    ('"client-key-data":"', _b64(pem("PRIVATE KEY")), '"'),
    ("    password: ", _b64(_PW), "\n    username: YWRtaW4=\n"),
)
_DOCKER_NPM: Final = _cases(
    "docker and npm",
    ('{"auths":{"ghcr.test":{"auth":"', _b64("bob:" + _PW), '"}}}'),
    ('{\n "auths": {\n  "r.test": {\n   "auth": "', _b64("bob:" + _TOKEN), '"\n  }\n }\n}'),
    ('"identitytoken": "', _TOKEN, '"'),
    ("//registry.npm.test/:_authToken=", "np" + "m_" + drawn(36), "\n"),
    ("//registry.npm.test/:_authToken=", _uuid(3), "\n"),
    ("_auth=", _b64("bob:" + _PW), "\n"),
    ("//r.test/:_auth = ", _b64("bob:" + _TOKEN), "\n"),
    ("//r.test/:_password=", _b64(_PW), "\n"),
    ('npmAuthToken: "', _TOKEN, '"\n'),
    ('npmAuthIdent: "', _b64("bob:" + _PW), '"\n'),
    ("[pypi]\nusername = bob\npassword = ", _WORD, "\n"),
)
_ASSIGNED: Final = _cases(
    "assigned",
    ("secret_key_base: ", drawn(128, HEX, 9), "\n"),
    ("password1: ", _PW, "\n"),
    ('new_password2 = "', _PW2, '"\n'),
    ('"passwd": "', _WORD, '"'),
    ('"db.password": "', _WORD, '"'),
    ("password := '", _WORD, "'"),
    ('password_b64: "', _b64(_PW), '"'),
    ("api-key:", _TOKEN, "\n"),
    ("x-api-key: ", _uuid(5), "\n"),
    ("apikey ", _TOKEN, "\n"),
    ("My password is ", _PW, ".\n"),
    ("Mein Passwort lautet ", _PW, ".\n"),
    ("contraseña: ", _PW, "\n"),
    ("mot de passe : ", _PW, "\n"),
    ("密码\uff1a", _PW, "\n"),
    ("Kennwort: ", _PW2, "\n"),
    ("пароль: ", _PW, "\n"),
    ("pw: ", _PW, "\n"),
    ("login: bob / pass: ", _PW, "\n"),
    ("user/pass = bob/", _PW, "\n"),
    ("Password (root): ", _PW, "\n"),
    ("Password for bob: ", _PW2, "\n"),
    ("temporary password: ", _PW, "\n"),
    ("PIN and password are 1234 and ", _PW, "\n"),
    ("app_secret=", drawn(32, HEX, 4), "&x=1"),
    ("webhook_secret: ", drawn(40, HEX, 4), "\n"),
    ("signing_secret = ", drawn(32, HEX, 6), "\n"),
    ("private_token: ", drawn(20), "\n"),
    ("PRIVATE-TOKEN: ", drawn(20, WIDE), "\n"),
    ("bot_token: ", drawn(46, WIDE), "\n"),
    ("const SECRET = '", drawn(32), "'"),
    ("JWT_SECRET=", _WORDY + "7", "\n"),
    ("COOKIE_SECRET=", drawn(24), "\n"),
    ("ENCRYPTION_KEY=", _HEX64, "\n"),
    ("APP_KEY=base64:", _B64, "\n"),
    ("RAILS_MASTER_KEY=", _HEX32, "\n"),
    ("master.key: ", _HEX32, "\n"),
    ("DATADOG_API_KEY=", _HEX32, "\n"),
    ("dd-app-key: ", drawn(40, HEX), "\n"),
    ("ALGOLIA_ADMIN_KEY=", _HEX32, "\n"),
    ("CLOUDFLARE_API_KEY=", drawn(37, HEX), "\n"),
    ("account_key=", drawn(86, BASE64) + "==", "\n"),
    ("AZURE_CLIENT_SECRET=", "aB3" + "8Q~" + drawn(34, WIDE), "\n"),
    ("TWILIO_AUTH_TOKEN=", _HEX32, "\n"),
    ("connectionString=Server=x;User Id=sa;Password=", _WORDY, ";Encrypt=true"),
    ("jdbc:postgresql://h/db?user=bob&password=", _WORD, "&ssl=true"),
    ("dsn='host=h user=bob password=", _WORD, " dbname=x'"),
    ('{"name": "password", "value": "', _WORD, '"}'),
    ('<add key="Password" value="', _PW, '" />'),
    ('<input type="password" value="', _PW, '">'),
    ('<property name="connection.password">', _WORD, "</property>"),
    ("passwordHash=, password=", _PW, ", role=x"),
    ("User(name='bob', password='", _WORD, "')"),
    ("otpauth://totp/A:bob?secret=", drawn(32, BASE32), "&issuer=A"),
    (
        "seed phrase: ",
        "witch collapse practice feed shame open despair creek road again ice least",
        "\n",
    ),
)

# ----------------------------------------------------------------------------- command lines

_COMMANDS: Final = _cases(
    "command",
    ("mysql -u root -p", _PW, " shop < dump.sql\n"),
    ("mysql -uroot -p'", _PW, "' shop\n"),
    ("mysqldump -h db -u root -p", _WORD, " shop > dump.sql\n"),
    ("mysqladmin -u root -p", _PW2, " status\n"),
    ("mariadb --user=root -p", _WORD, "\n"),
    ("sshpass -p ", _PW, " ssh bob@host\n"),
    ("sshpass -p '", _WORDY, "' scp a b:\n"),
    ("sshpass -p", _WORD, " rsync a b\n"),
    ("docker login -u bob -p ", _PW, " registry.test\n"),
    ("docker login registry.test --username bob --password ", _WORD, "\n"),
    ("podman login -p ", _TOKEN, " -u bob quay.test\n"),
    ("helm registry login r.test -u bob -p ", _WORD, "\n"),
    ("curl -u bob:", _PW, " https://api.test\n"),
    ("curl -s --user bob:", _WORD, " https://api.test\n"),
    ('curl -H "X-Auth: 1" -u "bob:', _WORDY, '" x\n'),
    ("wget --user=bob --password=", _WORD, " https://f.test\n"),
    ("http -a bob:", _PW, " https://api.test\n"),
    ("redis-cli -h cache -a ", _WORD, " ping\n"),
    ("redis-cli -a '", _PW, "' -n 1 keys x\n"),
    ("PGPASSWORD=", _WORD, " psql -h db -U bob shop\n"),
    ("PGPASSWORD='", _WORDY, "' pg_dump shop\n"),
    ("MYSQL_PWD=", _WORD, " mysql -u root\n"),
    ("RESTIC_PASSWORD=", _WORDY, " restic backup /srv\n"),
    ("psql 'host=h user=bob password=", _WORD, "'\n"),
    ("mongosh -u bob -p ", _PW, " --authenticationDatabase admin\n"),
    ("mongodump --username bob -p ", _WORD, "\n"),
    ("ldapsearch -x -D cn=admin -w ", _WORD, " -b dc=x\n"),
    ("htpasswd -b .htpasswd bob ", _WORDY, "\n"),
    ("openssl rsa -in a.pem -passin pass:", _WORD, " -out b\n"),
    ("zip -P ", _PW, " a.zip b\n"),
    ("unzip -P ", _WORD, " a.zip\n"),
    ("7z x a.7z -p", _PW, "\n"),
    ("sqlcmd -S h -U sa -P ", _PW, " -Q 'select 1'\n"),
    ("echo ", _PW, " | sudo -S apt update\n"),
    ("echo '", _WORD, "' | docker login -u bob --password-stdin\n"),
    ("echo 'bob:", _PW, "' | chpasswd\n"),
    ("smbclient //h/share -U bob%", _PW, "\n"),
    ("mount -t cifs //h/s /mnt -o username=bob,password=", _WORD, ",vers=3\n"),
    ("keytool -genkey -storepass ", _WORDY, " -alias a\n"),
    ("gpg --batch --passphrase ", _WORDY, " -c a\n"),
    ("az login --service-principal -u id -p ", _URLSAFE, " --tenant t\n"),
    ("rabbitmqctl add_user bob ", _WORDY, "\n"),
    ("mosquitto_pub -h h -u bob -P ", _WORD, " -t a\n"),
    ("sqlplus system/", _PW, "@//db:1521/x\n"),
    ("aws configure set aws_secret_access_key ", drawn(40, BASE64), "\n"),
    ("git clone https://oauth2:", "gl" + "pat-" + drawn(20, WIDE), "@gitlab.test/a.git\n"),
    ("ALTER USER bob WITH PASSWORD '", _WORD, "';\n"),
    ("CREATE USER bob IDENTIFIED BY '", _WORDY, "';\n"),
    ("vault login ", "hv" + "s." + drawn(90, WIDE), "\n"),
    ("npm config set //r.test/:_authToken ", _uuid(8), "\n"),
    ("xfreerdp /u:bob /p:", _PW, " /v:h\n"),
    ("net use Z: \\\\h\\s /user:bob ", _PW, "\n"),
)

# -------------------------------------------------------------------------------------- URLs

_URLS: Final = _cases(
    "url",
    ("git clone https://", _TOKEN, "@github.test/a/b.git"),
    ("https://", "gh" + "p_" + drawn(36), "@github.com/a/b.git"),
    ("git remote set-url origin https://", _HEX32, "@bitbucket.test/a"),
    ("https://", drawn(52, LOWER), "@dev.azure.test/a/_git/b"),
    ("https://x-token-auth:", _TOKEN, "@bitbucket.org/a/b"),
    ("redis://:", _WORD, "@cache:6379"),
    ("amqps://bob:", _PW.replace("#", "%23"), "@mq.test/vh"),
    ("https://maps.test/api?address=a&key=", _TOKEN, "&x=1"),
    ("https://api.test/v1?key=", "AI" + "za" + drawn(35, WIDE), ""),
    ("GET /v1/weather?q=Oslo&appid=", _HEX32, " HTTP/1.1"),
    ("https://api.test/x?api_key=", _HEX32, "&y"),
    ("https://api.test/x?apikey=", _TOKEN, ""),
    ("https://api.test/x?access_token=", _TOKEN, "#top"),
    ("https://api.test/x?auth=", _TOKEN, ""),
    ("https://api.test/x?token=", _uuid(2), ""),
    ("https://f.test/hook?code=", drawn(54, BASE64) + "==", ""),
    ("https://b.s3.test/a?X-Amz-Expires=60&X-Amz-Signature=", _HEX64, "&x-id=GetObject"),
    ("https://b.s3.test/a?X-Amz-Security-Token=", drawn(300, BASE64).replace("/", "%2F"), "&a=b"),
    (
        "https://s.test/a?GoogleAccessId=x&Expires=1&Signature=",
        drawn(86, BASE64).replace("/", "%2F"),
        "%3D%3D",
    ),
    ("https://s.test/a?X-Goog-Signature=", drawn(256, HEX), ""),
    ("https://a.blob.test/c/f?sv=2022-11-02&sr=b&sig=", drawn(43) + "%3D", "&se=2030"),
    (
        "https://d.cloudfront.test/f?Policy=e&Signature=",
        drawn(160, ALNUM + "~-"),
        "&Key-Pair-Id=K2",
    ),
    ("https://prod.logic.test/workflows/x?sp=%2Ftriggers&sv=1.0&sig=", _URLSAFE, ""),
    ("https://hooks.slack.com/services/", f"T01234567/B01234567/{drawn(24)}", ""),
    ("https://discord.com/api/webhooks/123456789012345678/", drawn(68), ""),
    (
        "https://x.webhook.office.com/webhookb2/",
        f"{_uuid(1)}@{_uuid(2)}/IncomingWebhook/{_HEX32}/{_uuid(3)}",
        "",
    ),
    ("https://api.telegram.org/bot", "123456789" + ":A" + "A" + drawn(33, WIDE), "/sendMessage"),
    ("https://app.test/reset?reset_token=", _URLSAFE, ""),
    ("wss://api.test/ws?jwt=", jwt(), ""),
    ("x?next=https%3A%2F%2Fbob%3A", _PW2.replace("!", "%21"), "%40h.test%2F"),
    ("x?body=api_key%3D", _TOKEN, "%26y"),
)

# ------------------------------------------------------------------------------------ hashes

_SALT: Final = drawn(22, "./" + ALNUM)
_HASHES: Final = _cases(
    "hash",
    ("bob:", "$2" + "b$12$" + drawn(53, "./" + ALNUM), ":1000\n"),
    ("password_digest: ", "$2" + "a$10$" + drawn(53, "./" + ALNUM, 3), "\n"),
    ("bob:", "$2" + "y$05$" + drawn(53, "./" + ALNUM, 5), "\n"),
    ("", "$arg" + "on2id$v=19$m=65536,t=3,p=4$" + _SALT + "$" + drawn(43, BASE64), ""),
    ("root:", "$" + "6$" + drawn(16) + "$" + drawn(86, "./" + ALNUM), ":19000:0:99999:7:::"),
    ("root:", "$" + "6$rounds=5000$" + drawn(16) + "$" + drawn(86, "./" + ALNUM), ":1::"),
    ("root:", "$" + "5$" + drawn(16) + "$" + drawn(43, "./" + ALNUM), ":1"),
    ("root:", "$" + "1$" + drawn(8) + "$" + drawn(22, "./" + ALNUM), ":1"),
    ("root:", "$" + "y$j9T$" + drawn(22, "./" + ALNUM) + "$" + drawn(43, "./" + ALNUM), ":1"),
    ("bob:", "$ap" + "r1$" + drawn(8) + "$" + drawn(22, "./" + ALNUM), "\n"),
    ("bob:", "{SS" + "HA}" + drawn(32, BASE64), "\n"),
    ('"pbkdf2_sha256', "$600000$" + drawn(22) + "$" + drawn(43, BASE64) + "=", '"'),
    ("'pbkdf2:sha256:600000", "$" + drawn(16) + "$" + _HEX64, "'"),
    ("'scrypt:32768:8:1", "$" + drawn(16) + "$" + drawn(128, HEX), "'"),
    (
        "",
        "$pbk" + "df2-sha512$25000$" + drawn(22, "./" + ALNUM) + "$" + drawn(86, "./" + ALNUM),
        "",
    ),
    ("", "$P" + "$B" + drawn(30, "./" + ALNUM), ""),
    (
        "SCRAM-SHA-256",
        "$4096:"
        + drawn(22, BASE64)
        + "==$"
        + drawn(43, BASE64)
        + "=:"
        + drawn(43, BASE64, 2)
        + "=",
        "",
    ),
    ("bob:1001:", f"{drawn(32, HEX, 1)}:{drawn(32, HEX, 2)}", ":::\n"),
    ("password_hash = '", _HEX64, "'"),
)

# ----------------------------------------------------------------------------------- vendors


def _vendors() -> Iterator[Case]:
    for name, key in (
        ("Notion", "sec" + "ret_" + drawn(43)),
        ("Notion", "nt" + "n_" + "12345678901" + drawn(35)),
        ("Airtable", "pat" + drawn(14) + "." + drawn(64, HEX)),
        ("Terraform", drawn(14) + ".atl" + "asv1." + drawn(67, WIDE)),
        ("GitLab runner", "GR13" + "48941" + drawn(20, WIDE)),
        ("Base58", "xpr" + "v9" + drawn(107, BASE58)),
        ("Alibaba", "LT" + "AI" + drawn(20)),
        ("Azure", "aB3" + "8Q~" + drawn(34, WIDE)),
        ("Azure DevOps", drawn(76, LOWER) + "AZDO" + drawn(4)),
        ("Facebook", "EAA" + "C" + drawn(160)),
        ("Square", "EAA" + "A" + drawn(60, WIDE)),
        ("Square", "sq0" + "csp-" + drawn(43, WIDE)),
        ("Square", "sq0" + "atp-" + drawn(22, WIDE)),
        ("1Password", "ops" + "_ey" + "J" + drawn(300)),
        (
            "1Password",
            "A3-" + "-".join(drawn(n, UPPER, n + at) for at, n in enumerate((6, 6, 5, 5, 5, 5))),
        ),
        ("Adobe", "p8" + "e-" + drawn(32, LOWER)),
        ("Artifactory", "AK" + "Cp" + drawn(69)),
        ("Artifactory", "cm" + "Vmd" + drawn(59)),
        ("Bedrock", "AB" + "SK" + drawn(120, BASE64)),
        ("Clojars", "CLOJ" + "ARS_" + drawn(60, LOWER)),
        ("Cloudflare origin", "v1." + "0-" + drawn(24, HEX) + "-" + drawn(146, HEX)),
        ("DigitalOcean", "do" + "p_v1_" + drawn(64, HEX)),
        ("Duffel", "duf" + "fel_live_" + drawn(43, WIDE)),
        ("Dynatrace", "dt0" + "c01." + drawn(24, UPPER) + "." + drawn(64, UPPER)),
        ("EasyPost", "EZ" + "AK" + drawn(54)),
        ("Flutterwave", "FLW" + "SECK_TEST-" + drawn(32, HEX) + "-X"),
        ("Fly", "fo" + "1_" + drawn(43, WIDE)),
        ("Fly", "fm" + "2_" + drawn(140, BASE64)),
        ("Frame.io", "fi" + "o-u-" + drawn(64, WIDE)),
        ("Google", "AQ" + ".Ab8" + drawn(44, WIDE)),
        ("Harness", "pa" + "t." + drawn(22, WIDE) + "." + drawn(24, HEX) + "." + drawn(20)),
        ("Heroku", "HRK" + "U-AA" + drawn(58, WIDE)),
        ("Hugging Face", "api" + "_org_" + drawn(34)),
        ("Infracost", "ic" + "o-" + drawn(32)),
        ("Intra42", "s-s4" + "t2ud-" + drawn(64, HEX)),
        ("MaxMind", drawn(6) + "_" + drawn(29) + "_m" + "mk"),
        ("Octopus", "AP" + "I-" + drawn(26, UPPER)),
        ("OpenShift", "sha" + "256~" + drawn(43, WIDE)),
        ("Prefect", "pn" + "u_" + drawn(36)),
        ("ReadMe", "rd" + "me_" + drawn(70, LOWER)),
        ("Scalingo", "tk" + "-us-" + drawn(48, WIDE)),
        ("Brevo", "xkey" + "sib-" + drawn(64, HEX) + "-" + drawn(16)),
        ("Settlemint", "sm" + "_pat_" + drawn(16)),
        ("Shippo", "ship" + "po_live_" + drawn(40, HEX)),
        ("Sourcegraph", "sg" + "p_" + drawn(40, HEX)),
        ("Mailchimp", drawn(32, HEX) + "-us" + "12"),
        ("Yandex", "AQ" + "VN" + drawn(36, WIDE)),
        ("Dropbox", "sl" + ".B" + drawn(130, WIDE)),
        ("Contentful", "CFP" + "AT-" + drawn(43, WIDE)),
        ("PostHog", "ph" + "x_" + drawn(43)),
        ("Resend", "re" + "_" + drawn(8) + "_" + drawn(24)),
        ("Vercel", "ver" + "cel_" + drawn(24)),
        ("Render", "rn" + "d_" + drawn(32)),
        ("CircleCI", "CCI" + "PAT_" + drawn(22) + "_" + drawn(40, HEX)),
        ("Buildkite", "bk" + "ua_" + drawn(40, HEX)),
        ("Neon", "nap" + "i_" + drawn(64, LOWER)),
        ("Pinecone", "pc" + "sk_" + drawn(6) + "_" + drawn(63)),
        ("Mapbox", "sk" + ".ey" + "J" + drawn(80) + "." + drawn(22, WIDE)),
        ("Tailscale", "tsk" + "ey-auth-" + drawn(12) + "-" + drawn(32)),
        ("SonarQube", "sq" + "u_" + drawn(40, HEX)),
        ("Snyk", "snyk" + "_uat." + drawn(8, HEX) + "." + drawn(60, WIDE)),
        ("Razorpay", "rz" + "p_live_" + drawn(14)),
        ("Paystack", "sk" + "_live_" + drawn(40, HEX)),
        ("Braintree", "access" + "_token$production$" + drawn(16, LOWER) + "$" + drawn(32, HEX)),
        ("Amazon MWS", "amzn" + ".mws." + _uuid(6)),
        ("Atlassian", "ATC" + "TT3" + drawn(180, WIDE) + "=" + drawn(8, UPPER)),
        ("Bitbucket", "AT" + "BB" + drawn(32)),
        ("Asana", "1/12345678901" + "2345:" + drawn(32, HEX)),
        ("ClickUp", "pk" + "_12345678_" + drawn(32, UPPER)),
        ("Linear OAuth", "lin" + "_oauth_" + drawn(64, HEX)),
        ("Cohere", "co" + "_" + drawn(40)),
        ("Modal", "ak" + "-" + drawn(22)),
        ("Deepgram", "dg" + "_" + drawn(40, HEX)),
        ("Jina", "jina" + "_" + drawn(32, HEX) + drawn(28)),
        ("Exoscale", "EXO" + drawn(24, HEX)),
        ("Scaleway", "SC" + "W" + drawn(17, UPPER)),
        ("LaunchDarkly", "sdk-" + _uuid(9)),
        ("Segment", "sgp_" + drawn(64)),
        ("Typeform", "tf" + "p_" + drawn(59, WIDE)),
        ("Telegram", "987654321" + ":A" + "A" + drawn(33, WIDE, 4)),
        ("Nomic", "nk" + "-" + drawn(43, WIDE)),
        ("Crates.io", "ci" + "o" + drawn(32)),
        ("NuGet", "oy" + "2" + drawn(43, LOWER)),
        ("HashiCorp batch", "hv" + "b." + drawn(140, WIDE)),
        ("Azure search", drawn(52, ALNUM, 9) + "JQQ" + "J9" + drawn(27, ALNUM, 9)),
        ("Azure storage", drawn(76, BASE64) + "+A" + "St" + drawn(6) + "=="),
        ("Supabase", "sb" + "_secret_" + drawn(22, WIDE) + "_" + drawn(8, WIDE)),
        ("GitHub server", "gh" + "s_" + drawn(36)),
        ("Slack workflow", "xo" + "xe-1-" + drawn(146)),
    ):
        yield Case("vendor", f"I use {name} with ", key, " here.\n")


_PPK: Final = (
    "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: bob\nPublic-Lines: 2\n"
    + drawn(64, BASE64, 21)
    + "\n"
    + drawn(44, BASE64, 22)
    + "\nPrivate-Lines: 1\n"
)
_DER: Final = "MII" + "EvQIBADAN" + "BgkqhkiG9w0BAQEFAASCBKcwggSj"
_KEYS: Final = _cases(
    "key data",
    (_PPK, drawn(64, BASE64, 3), "\nPrivate-MAC: " + _HEX64 + "\n"),
    (_PPK.replace("Lines: 1", "Lines: 2"), drawn(64, BASE64) + "\n" + drawn(40, BASE64), "\n"),
    ("key = '", _DER + drawn(400, BASE64), "'\n"),
    ("", "MII" + "EowIBAAKCAQEA" + drawn(400, BASE64), "\n"),
    ("", "MIG" + "HAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg" + drawn(130, BASE64), "\n"),
    ("", "MC4C" + "AQAwBQYDK2VwBCIEI" + drawn(43, BASE64), "\n"),
    ('{"private_key": "', pem("PRIVATE KEY", "\\n"), '"}'),
    ('"{\\"key\\": \\"', pem("PRIVATE KEY", "\\\\n"), '\\"}"'),
    ("> ", pem(join="\n> "), "\n"),
    ("    ", pem(join="\n    "), "\n"),
    ('{"kty":"RSA","n":"abc","d":"', drawn(342, WIDE), '","e":"AQAB"}'),
    ('{"kty":"oct","k":"', drawn(86, WIDE), '"}'),
    ("PrivateKey = ", _B64, "\nAddress = 10.0.0.2/32\n"),
    ("PresharedKey = ", _B64, "\n"),
    (
        "-----BEGIN OpenVPN Static key V1-----\n",
        drawn(32, HEX) + "\n" + drawn(32, HEX, 2),
        "\n-----END OpenVPN Static key V1-----",
    ),
)

# ------------------------------------------------------------------------------- disguises

_GH: Final = "gh" + "p_" + drawn(36)
_PROJ: Final = "sk-" + "proj-" + drawn(120, WIDE)
_AKIA: Final = "AK" + "IA" + drawn(16, BASE32)
_DISGUISED: Final = _cases(
    "disguised",
    ("token", _GH, ""),
    ("mykey", _AKIA, " x"),
    ("key_", _AKIA, "_old"),
    ("", _AKIA, "and more"),
    ("OPENAI", _PROJ, ""),
    ("x", "gl" + "pat-" + drawn(20, WIDE), ""),
    ("abc", "xo" + "xb-" + "123456789012-123456789012-" + drawn(24), ""),
    ("key", "AI" + "za" + drawn(35, WIDE), " x"),
    ("a", "np" + "m_" + drawn(36), ""),
    ("v1", "sk_" + "live_" + drawn(24), ""),
    ("", "\u200b".join([_GH[:10], _GH[10:]]), ""),
    ("", "\u200d".join(_GH), ""),
    ("", _PROJ[:30] + "\u00ad" + _PROJ[30:], ""),
    ("", _AKIA[:8] + "\u2060" + _AKIA[8:], ""),
    ("", _GH[:3] + "\ufeff" + _GH[3:], ""),
    ("pass\u200bword=", _PW, ""),
    ("\u202e", _GH[:20] + "\u202c" + _GH[20:], ""),
    ("", _GH[:12] + "\x1b[1;31m" + _GH[12:20] + "\x1b[0m" + _GH[20:], ""),
    ('"', "\\u0067\\u0068" + _GH[2:], '"'),
    ('"', _GH[:3] + "\\u005f" + _GH[4:], '"'),
    ('"{\\"a\\": \\"', "\\\\u0067" + _GH[1:], '\\"}"'),
    ('"\\u0070assword": "', _WORD, '"'),
    ("", _GH[:3] + "%5F" + _GH[4:], ""),
    ("password=&quot;", _WORD, "&quot;"),
    ("password&#61;", _PW, ""),
    ('{\\\\\\"password\\\\\\": \\\\\\"', _WORD, '\\\\\\"}'),
    (
        json.dumps(json.dumps(json.dumps({"a": {"password": "X"}}))).split("X")[0],
        _WORD,
        '\\\\\\"}}\\""',
    ),
    ("aws_secret_access_key=", drawn(20, BASE64) + "\\/" + drawn(19, BASE64, 2), "\n"),
    ("Basic ", _b64("bob:" + _PW), " in a header"),
    ("Authorization: Basic\n  ", _b64("bob:" + _PW), ""),
    ("Authorization: AWS4-HMAC-SHA256 Credential=x, Signature=", _HEX64, ""),
    ("Authorization: ApiKey ", _b64("id:" + drawn(22)), ""),
    ("X-Auth-Token: ", _HEX32, ""),
    ("X-Vault-Token: ", "s." + drawn(24), ""),
    ("Cookie: theme=a; sessionid=", drawn(32, LOWER), ""),
    ("visited with _gitlab_session=", drawn(32, HEX), " set"),
    ("HCLOUD_TOKEN=", drawn(64), " hcloud"),
    ("Set-Cookie: connect.sid=s%3A", drawn(32) + "." + drawn(43), "; Path=/"),
)

# ------------------------------------------------------------------ written after the rules

_PW3: Final = "Wr8" + "$mQ4zN"
_WORD2: Final = "moon" + "river"
_TOKEN2: Final = drawn(36, seed=77)
_HEX40: Final = drawn(40, HEX, seed=77)
_LATER: Final = _cases(
    "later",
    ("the db password is ", _WORD2, "."),
    ('password: "', _WORD2, '"'),
    ("pass=", _PW3, ""),
    ("DATABASE_URL=postgres://app:", _WORD2, "@db/app"),
    ("REDIS_URL=redis://default:", _TOKEN2, "@h:6379"),
    ('sudo mysql -uroot -p"', _WORD2, "\" -e 'show tables'"),
    ("docker run -e MYSQL_ROOT_PASSWORD=", _WORD2, " mysql:8"),
    ("kubectl create secret generic a --from-literal=password=", _WORD2, " -n b"),
    ("helm install a --set auth.password=", _WORD2, " chart"),
    ("helm install a --set postgresql.auth.postgresPassword=", _PW3, ""),
    ("ansible-playbook -e 'db_password=", _WORD2, "'"),
    ("terraform apply -var='db_password=", _PW3, "'"),
    ('db_password = "', _WORD2, '"'),
    ('"password" => "', _WORD2, '"'),
    ("password=>", _PW3, ""),
    (":password: ", _WORD2, "\n"),
    ("password => '", _WORD2, "',"),
    ("<password>", _WORD2, "</password>"),
    ('setPassword("', _PW3, '")'),
    ("login('bob', '", _PW3, "')"),
    ("auth=('bob', '", _PW3, "')"),
    ("new MongoClient('mongodb://a:", _WORD2, "@h/')"),
    ("jdbc:mysql://h/db?user=a&password=", _PW3, ""),
    ("Password\n", _PW3, "\n"),
    ("username: bob, password: ", _WORD2, "\n"),
    ("User: bob Pass: ", _PW3, "\n"),
    ("wifi password ", _PW3, "\n"),
    ("the root pw is ", _PW3, "\n"),
    ("creds: bob / ", _PW3, "\n"),
    ("bob:", _PW3, "@10.0.0.1"),
    ("api_key = '", _TOKEN2, "'"),
    ("Api-Key: ", _TOKEN2, ""),
    ("headers={'X-Api-Key': '", _TOKEN2, "'}"),
    ("token=", _HEX40, ""),
    ("Token: ", _HEX40, ""),
    ('-_HEX40 "Authorization: token ', _HEX40, '"'),
    ("-_HEX40 'PRIVATE-TOKEN: ", drawn(20, seed=3), "'"),
    (
        "TF_TOKEN_app_terraform_io=",
        drawn(14, seed=5) + "." + "atlas" + "v1." + drawn(66, seed=5),
        "",
    ),
    ("VAULT_TOKEN=", "hv" + "s." + drawn(24, seed=8), ""),
    ("SLACK_SIGNING_SECRET=", drawn(32, HEX, seed=9), ""),
    ("client_secret: ", "GOC" + "SPX-" + drawn(28, seed=4), ""),
    ("NEXTAUTH_SECRET=", drawn(43, BASE64, seed=3) + "=", ""),
    ("SECRET_KEY='", drawn(50, ALNUM + "!@#$%^&*(-_=+)", seed=6), "'"),
    ("AWS_SESSION_TOKEN=", drawn(300, BASE64, seed=6), ""),
    ("secret: ", drawn(32, seed=12), ""),
    ("credentials: bob:", _PW3, ""),
    ('PASSPHRASE="', _WORD2 + " and the sea", '"'),
    ("gpg --passphrase='", _WORD2, "' -d a"),
    ("ssh-keygen -N ", _WORD2, " -f a"),
    ("createuser -P; psql -c \"ALTER ROLE a PASSWORD '", _PW3, "'\""),
    ("mysql> SET PASSWORD FOR 'a'@'h' = '", _PW3, "';"),
    ("rclone config create x webdav pass ", _PW3, ""),
    ("curl -_HEX40 'Authorization: Bearer ", _TOKEN2, "'"),
    ("curl --user 'bob:", _WORD2, "' x"),
    ("curl https://bob:", _WORD2, "@api.test/x"),
    ("wget --http-password=", _WORD2, " u"),
    (
        "git -c http.extraheader='AUTHORIZATION: basic ",
        base64.b64encode(b"x:" + _TOKEN2.encode()).decode(),
        "' pull",
    ),
    ("x-amz-security-token: ", drawn(200, BASE64, seed=2), ""),
    ('"accessToken":"', _TOKEN2, '"'),
    ('"refresh_token": "', "1/" + "/0" + drawn(60, seed=2), '"'),
    ("session_cookie=", drawn(64, HEX, seed=1), ""),
    (
        'mnemonic = "',
        "legal winner thank year wave sausage worth useful legal winner thank yellow",
        '"',
    ),
    ("pin: ", "483920", ""),
    ("2FA backup codes: ", "a8f3-k29d", ""),
    ("Passwort ist ", _PW3, ""),
    ("Das Passwort lautet: ", _WORD2, "\n"),
)

SECRETS: Final[tuple[Case, ...]] = (
    *_NETRC,
    *_PGPASS,
    *_MARKDOWN,
    *_ENV,
    *_YAML,
    *_KUBE,
    *_DOCKER_NPM,
    *_ASSIGNED,
    *_COMMANDS,
    *_URLS,
    *_HASHES,
    *_vendors(),
    *_KEYS,
    *_DISGUISED,
    *_LATER,
    *_cases("tool output", *WITH_SECRETS),
)


def is_kept(case: Case, redacted: str) -> bool:
    """True if a redacted text still has a secret, or twelve characters of it in a row."""
    size = min(_WINDOW, len(case.secret))
    windows = (case.secret[at : at + size] for at in range(len(case.secret) - size + 1))
    return any(window in redacted for window in windows)


def kept_secrets() -> list[Case]:
    """Return the secrets that redaction does not find."""
    using = detectors_named()
    return [case for case in SECRETS if is_kept(case, redact_text(case.text, using)[0])]


def changed_texts() -> list[str]:
    """Return the harmless texts that redaction changes."""
    using = detectors_named()
    return [text for text in HARMLESS if redact_text(text, using)[1]]


def print_figures() -> None:
    """Print how many secrets were kept, and how many harmless texts were changed."""
    sys.stdout.write(
        f"secrets kept: {len(kept_secrets())} of {len(SECRETS)}\n"
        f"harmless texts changed: {len(changed_texts())} of {len(HARMLESS)}\n"
    )


if __name__ == "__main__":
    print_figures()

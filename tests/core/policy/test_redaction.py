"""Secrets are found by their looks and by their names, and nothing else is touched."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import re
import time
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.core.policy.redaction import KEYS, PATTERNS, Redactor, make_rules, redact
from surehold.core.state.state import State
from surehold.core.values.frozen import FrozenDict, FrozenList
from surehold.errors import UsageError

RULES = make_rules()


def fake(prefix: str, length: int, alphabet: str = "aB3dE5gH7jK9") -> str:
    """Something that looks like a key. Spelled so that no scanner of this file takes it for one."""
    return prefix + (alphabet * length)[:length]


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


JWT = ".".join([part({"alg": "HS256", "typ": "JWT"}), part({"sub": "1234567890"}), fake("", 43)])
DASHES = "-" * 5
PEM = (
    f"{DASHES}BEGIN RSA PRIVATE KEY{DASHES}\nMIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi\n"
    f"Zq5nrYA\n{DASHES}END RSA PRIVATE KEY{DASHES}"
)

SECRETS = {
    "OpenAI": ("api_key", fake("sk-", 48)),
    "OpenAI project": ("api_key", fake("sk-proj-", 100)),
    "Anthropic": ("api_key", fake("sk-ant-api03-", 95)),
    "Stripe": ("api_key", fake("sk_live_", 24)),
    "Google": ("api_key", fake("AIza", 35)),
    "Hugging Face": ("api_key", fake("hf_", 34)),
    "GitLab": ("api_key", fake("glpat-", 20)),
    "AWS": ("aws_key", fake("AKIA", 16, "ABC2DEF3")),
    "AWS, temporary": ("aws_key", fake("ASIA", 16, "ABC2DEF3")),
    "GitHub": ("github_token", fake("ghp_", 36)),
    "GitHub app": ("github_token", fake("ghs_", 36)),
    "GitHub, fine-grained": ("github_token", fake("github_pat_", 82)),
    "Slack bot": ("slack_token", fake("xoxb-", 50)),
    "Slack app": ("slack_token", fake("xapp-", 40)),
    "JWT": ("jwt", JWT),
    "PEM": ("private_key", PEM),
    "PEM in one line": ("private_key", PEM.replace("\n", "\\n")),
    "PEM cut short": ("private_key", PEM[:60]),
    "PGP": ("private_key", PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK")),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_found_wherever_it_stands_in_a_text(name: str) -> None:
    kind, secret = SECRETS[name]
    for text in (
        secret,
        f"use {secret} please",
        f'{{"key": "{secret}"}}',
        f"KEY={secret}\nNEXT=1",
        f"({secret})",
        f"{secret}, {secret}",
    ):
        made, counts = redact(text, RULES)
        assert secret not in made and secret[8:20] not in made
        assert made.startswith(text.partition(secret)[0] + f"[redacted:{kind}]")
        # One that is cut short has no end, and takes the next along.
        assert counts == {kind: 1 if "cut" in name else text.count(secret)}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (
            f"Authorization: Bearer {fake('', 30)}\nAccept: */*",
            "Authorization: Bearer [redacted:bearer]\nAccept: */*",
        ),
        (
            "postgresql://app:hunter2@db.local:5432/x",
            "postgresql://app:[redacted:url_password]@db.local:5432/x",
        ),
        ("redis://:hunter2@cache/0", "redis://:[redacted:url_password]@cache/0"),
    ],
)
def test_of_a_header_or_an_address_only_the_secret_goes(text: str, made: str) -> None:
    assert redact(text, RULES)[0] == made


@pytest.mark.parametrize(
    "text",
    [
        "the task-oriented desk-side risk-management-of-everything-we-have approach",
        "sk-folding-cube sk-spinner-three-bounce-large-and-long-name",
        "https://example.org:8080/a@b and mailto:someone@example.org",
        "http://[::1]:8000/x",
        "the bearer of this letter, a bearer responsibilities-and-more",
        "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "AKIA is a prefix, and so is ghp_ and xoxb-",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    made, counts = redact(text, RULES)
    assert made is text
    assert not counts


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("password", "password"),
        ("PASSWORD", "password"),
        ("db_password", "password"),
        ("userPassword", "password"),
        ("DB-PASSWORD-2", "password"),
        ("passwd", "passwd"),
        ("secret", "secret"),
        ("client_secret", "secret"),
        ("AWS_SECRET_ACCESS_KEY", "secret_access_key"),
        ("token", "token"),
        ("accessToken", "token"),
        ("GITHUB_TOKEN", "token"),
        ("X-Auth-Token", "token"),
        ("api_key", "api_key"),
        ("apiKey", "api_key"),
        ("apikey", "apikey"),
        ("OPENAI_API_KEY", "api_key"),
        ("X-API-Key", "api_key"),
        ("private_key", "private_key"),
        ("Authorization", "authorization"),
        ("Set-Cookie", "set_cookie"),
    ],
)
def test_a_value_under_a_telling_name_is_redacted(key: str, kind: str) -> None:
    assert redact({key: "x1"}, RULES) == ({key: f"[redacted:{kind}]"}, {kind: 1})


@pytest.mark.parametrize(
    "key",
    [
        *("token_count", "tokens", "max_tokens", "total_tokens", "tokenizer", "tokenised"),
        *("next_page_token", "nextToken", "eos_token", "continuation_token"),
        *("password_changed_at", "secretary", "passwordless", "key", "keys", "primary_key"),
        *("author", "authorized", "cookies_accepted", "compass", "", "42", "ключ"),
    ],
)
def test_a_name_that_only_sounds_like_one_is_not(key: str) -> None:
    value = {key: "x1"}
    assert redact(value, RULES)[0] is value


def test_everything_under_a_telling_name_goes_but_what_holds_nothing() -> None:
    value = {
        "credentials": {
            "user": "ada",
            "codes": [1234, 5.5, b"raw", ("a", None)],
            "enabled": True,
            "note": "",
        },
        "token": 50256,
        "password": 12345,
        "secret": None,
    }
    made, counts = redact(value, RULES)
    gone = "[redacted:credentials]"
    assert made == {
        "credentials": {
            "user": gone,
            "codes": [gone, gone, gone.encode(), (gone, None)],
            "enabled": True,
            "note": "",
        },
        "token": 50256,
        "password": "[redacted:password]",
        "secret": None,
    }
    assert counts == {"credentials": 5, "password": 1}


class Color(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Login:
    user: str
    password: str
    tries: int = dataclasses.field(default=0, init=False)


class Call(msgspec.Struct, frozen=True):
    url: str
    headers: dict[str, str]


class Model(pydantic.BaseModel):
    name: str
    api_key: str


Point = namedtuple("Point", "x y")

KEY = SECRETS["GitHub"][1]
GONE = "[redacted:github_token]"


def test_containers_keep_their_sort() -> None:
    value = {
        "list": [KEY],
        "tuple": (KEY, 1),
        "named": Point(1, KEY),
        "set": {KEY},
        "frozenset": frozenset([KEY]),
        "bytes": b"\xff" + KEY.encode() + b"\x00",
        "bytearray": bytearray(KEY.encode()),
        "deep": [{"a": [({"b": KEY},)]}],
        "dataclass": Login("ada", "hunter2"),
        "struct": Call("/", {"Authorization": "x"}),
        "model": Model(name="m", api_key="hunter2"),
    }
    made, counts = redact(value, RULES)
    assert made == {
        "list": [GONE],
        "tuple": (GONE, 1),
        "named": Point(1, GONE),
        "set": {GONE},
        "frozenset": frozenset([GONE]),
        "bytes": b"\xff" + GONE.encode() + b"\x00",
        "bytearray": bytearray(GONE.encode()),
        "deep": [{"a": [({"b": GONE},)]}],
        "dataclass": Login("ada", "[redacted:password]"),
        "struct": Call("/", {"Authorization": "[redacted:authorization]"}),
        "model": Model(name="m", api_key="[redacted:api_key]"),
    }
    assert [type(made[key]) for key in value] == [type(item) for item in value.values()]
    assert counts == {"github_token": 8, "password": 1, "authorization": 1, "api_key": 1}
    assert "hunter2" not in repr(made) and KEY not in repr(made)


def test_nothing_is_changed_in_place() -> None:
    login = Login("ada", "hunter2")
    value = {"a": [KEY], "login": login}
    redact(value, RULES)
    assert value == {"a": [KEY], "login": Login("ada", "hunter2")}
    assert login.password == "hunter2"


def test_what_holds_no_secret_comes_back_as_the_same_object() -> None:
    clean = {
        "list": [1, "a", {"b": (2, None)}],
        "model": Login("ada", ""),
        "enum": Color.RED,
        "ordered": OrderedDict(a=1),
        "path": Path("/x"),
        "object": object(),
        "class": Login,
    }
    assert redact(clean, RULES)[0] is clean
    value = {"clean": clean, "dirty": [clean, KEY]}
    made, _ = redact(value, RULES)
    assert made["clean"] is clean
    assert made["dirty"][0] is clean


def test_frozen_values_of_a_state_become_ordinary_ones_that_it_takes_back() -> None:
    state = State.new({"messages": [{"content": KEY}]})
    made, _ = redact(state["messages"], RULES)
    assert type(made) is list and type(made[0]) is dict
    assert isinstance(state["messages"], FrozenList)
    assert isinstance(state.set("messages", made)["messages"][0], FrozenDict)


def test_keys_that_are_secrets_are_replaced_and_none_is_lost() -> None:
    other = KEY.replace("aB3", "cD4")
    made, counts = redact({KEY: 1, other: 2, "x": 3}, RULES)
    assert made == {GONE: 1, f"{GONE}#2": 2, "x": 3}
    assert counts == {"github_token": 2}


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([KEY, PEM, JWT]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(KEYS), inner),
    max_leaves=20,
)


@given(json_like)
def test_redacting_twice_changes_nothing_more(value: Any) -> None:
    once, counts = redact(value, RULES)
    twice, more = redact(once, RULES)
    assert twice is once
    assert not more
    assert bool(counts) == (once is not value)
    text = repr(once)
    assert KEY not in text and JWT not in text and "MIIEpAIBAAKCAQEA" not in text


@given(json_like, json_like)
def test_what_is_remembered_changes_no_answer(first: Any, second: Any) -> None:
    redactor = Redactor(RULES)
    redactor.redact(first)
    assert redactor.redact(second) == redact(second, RULES)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surehold.core.policy.redaction._REMEMBERED", 10_000)
    monkeypatch.setattr("surehold.core.policy.redaction._REMEMBERED_KEYS", 10)
    redactor = Redactor(RULES)
    for number in range(1000):
        redactor.redact({f"key{number}": f"text {number}"})
    assert len(redactor._clean) < 300
    assert len(redactor._kinds) <= 11


def test_patterns_and_keys_of_the_users_own_may_be_added_or_stand_alone() -> None:
    more = make_rules({**PATTERNS, "ticket": re.compile("tck-[0-9]+", re.IGNORECASE)}, ["pin"])
    made, counts = redact({"pin": "1", "password": "x", "note": f"TCK-77 {KEY}"}, more)
    assert made == {"pin": "[redacted:pin]", "password": "x", "note": f"[redacted:ticket] {GONE}"}
    assert counts == {"pin": 1, "ticket": 1, "github_token": 1}
    only = make_rules({"bearer": "xyz"}, [])
    assert redact(f"xyz {KEY}", only)[0] == f"[redacted:bearer] {KEY}"


def test_rules_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError, match="not valid"):
        make_rules({"broken": "("})
    with pytest.raises(UsageError, match="kind of secret"):
        make_rules({"Not A Label": "x"})
    with pytest.raises(UsageError, match="cannot name"):
        make_rules(keys=["--"])


HOSTILE = [
    *(f"{DASHES}BEGIN PRIVATE KEY{DASHES}!", f"{DASHES}BEGIN ", f"{DASHES}BEGIN A ", "sk-"),
    *("Bearer ", "://", "://a:", "eyJ", "eyJaaaaaaaaa.", "hf_", "sk-a", "xox", "a:", "-----END "),
]


@pytest.mark.figures
@pytest.mark.parametrize("piece", HOSTILE)
def test_no_text_takes_more_than_time_in_proportion_to_its_length(piece: str) -> None:
    ending = f"{DASHES}BEGIN PRIVATE KEY{DASHES} .eyJ sk- hf_ Bearer :// xox"

    def seconds(length: int) -> float:
        text = piece * (length // len(piece)) + ending
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            redact(text, RULES)
            best = min(best, time.perf_counter() - started)
        return best

    # Ten times the text: some ten times the time, where a backtracking pattern takes a hundred.
    assert seconds(200_000) < 40 * seconds(20_000) + 0.01


def test_what_json_text_calls_a_secret_is_one() -> None:
    """A tool's result is JSON text in the conversation of an agent."""
    text = '{"user": "ann", "password": "hunter-2", "more": [{"db_password": "x"}, 1.50]}'
    made, counts = redact([text], RULES)
    assert made == [
        '{"user":"ann","password":"[redacted:password]",'
        '"more":[{"db_password":"[redacted:password]"},1.5]}'
    ]
    assert counts == {"password": 2}
    assert redact(made, RULES) == (made, {})
    for harmless in ('{"user": 1.50}', '{"password": ', "[" * 100_000 + '"a":', '["a": 1]'):
        assert redact(harmless, RULES)[0] is harmless

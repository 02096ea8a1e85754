"""A recorded call as a value, and as the plain data that journals and files keep."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from surehold.core.values import Usage
from surehold.errors import DataError
from surehold.integrations.recorder.billing import body_text
from surehold.integrations.recorder.inside import Asked, HttpAnswer, canonical, model_of


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request and the answer that was recorded for it."""

    number: int
    """Its place in the order in which answers were complete, from 1."""
    key: str
    loose: str
    """The key of a loose match."""
    slot: int
    """How many equal requests came before it."""
    request: dict[str, Any]
    """Method, address and body, without credentials."""
    answer: HttpAnswer
    model: str = ""
    usage: Usage = Usage.none()
    begun: tuple[str, ...] = ()
    """Requests that were in progress then, beside this one."""

    @property
    def id(self) -> str:
        """The call's position: the same on every replay."""
        return position(self.key, self.slot)

    @property
    def label(self) -> str:
        """The name of the call for people.

        >>> label({"method": "POST", "url": "api.openai.com/v1/responses"}, "gpt-5")
        'api.openai.com/v1/responses gpt-5'
        """
        return label(self.request, self.model)

    def tree(self) -> dict[str, Any]:
        """The call as plain data: readable text where bytes are text."""
        head = {"status": self.answer.status, "reason": self.answer.reason}
        headers = [[key, value] for key, value in self.answer.kept_headers()]
        return {
            "model": self.model,
            "usage": _usage_tree(self.usage),
            "request": self.request,
            "loose": self.loose,
            "response": {**head, "headers": headers, **_body(self.answer)},
            **({"begun": list(self.begun)} if self.begun else {}),
        }

    @classmethod
    def read(cls, number: int, id: str, tree: Mapping[str, Any]) -> RecordedCall:
        """Read what `tree` gave; a `DataError` if it is not a recorded call."""
        try:
            key, _, slot = id.partition("#")
            told = tree["response"]
            headers = [(name, value) for name, value in told["headers"]]
            return cls(
                number=number,
                key=key,
                slot=int(slot),
                loose=tree["loose"],
                request=dict(tree["request"]),
                answer=HttpAnswer(
                    told["status"],
                    told["reason"],
                    headers,
                    _chunks(told),
                    told.get("complete", True),
                    told.get("seconds", 0.0),
                ),
                model=tree.get("model", ""),
                usage=Usage.read(tree.get("usage", {"calls": 0})),
                begun=tuple(tree.get("begun", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{id!r} is not a recorded call: {type(error).__name__}: {error}",
                hint="was the recording edited by hand? record it again",
            ) from error


def position(key: str, slot: int) -> str:
    """The id of the call with that key and slot."""
    return f"{key}#{slot}"


def label(request: Mapping[str, Any], model: str) -> str:
    """The name of a request for people."""
    address = str(request["url"]).partition("?")[0]
    return f"{address} {model}" if model else address


def facts_of(asked: Asked) -> tuple[dict[str, Any], str]:
    """The request as it is stored, and its model."""
    return canonical(asked), model_of(asked) or ""


def _usage_tree(usage: Usage) -> dict[str, Any]:
    told = usage.to_dict()
    told.pop("seconds")
    return told


def _body(answer: HttpAnswer) -> dict[str, Any]:
    whole = b"".join(answer.chunks)
    made: dict[str, Any] = {}
    if len(answer.chunks) > 1:
        made["sizes"] = [len(chunk) for chunk in answer.chunks]
    try:
        made["text"] = whole.decode()
    except UnicodeDecodeError:
        made["base64"] = base64.b64encode(whole).decode()
        if text := body_text(answer):
            made["reads"] = text  # for people; the bytes are what is given back
    if not answer.complete:
        made["complete"] = False
    made["seconds"] = round(answer.seconds, 6)
    return made


def _chunks(told: Mapping[str, Any]) -> list[bytes]:
    whole = told["text"].encode() if "text" in told else base64.b64decode(told["base64"])
    sizes = told.get("sizes", [len(whole)] if whole else [])
    if sum(sizes) != len(whole):
        sizes = [len(whole)]  # the text was redacted or edited
    chunks, at = [], 0
    for size in sizes:
        chunks.append(whole[at : at + size])
        at += size
    return chunks

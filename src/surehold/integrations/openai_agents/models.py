"""Models whose responses a run records: the response, not the growing request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from agents import ModelBehaviorError, Usage
from agents.items import ModelResponse, TResponseStreamEvent
from agents.models.interface import Model, ModelProvider
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputItemDoneEvent
from openai.types.responses.response_usage import ResponseUsage
from pydantic import TypeAdapter, ValidationError

from surehold.agents.models import cost_of
from surehold.core.values import Usage as Tokens
from surehold.errors import DecodeError
from surehold.integrations.calls import open_context
from surehold.integrations.openai_agents.execution import AgentExecution

_RESPONSE = TypeAdapter(ModelResponse)


class RecordedModel(Model):
    """A model whose responses are recorded in the run around it.

    The events of a stream are passed on as they come, and the last one when the response is
    durable. A replay streams the last one only.
    """

    def __init__(self, model: Model, execution: AgentExecution) -> None:
        self.inner: Model = model.inner if isinstance(model, RecordedModel) else model
        self._execution = execution

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """The model's response, or the recorded one."""

        async def call() -> Any:
            return _written(await self.inner.get_response(*args, **kwargs))

        return _read(await self._execution.model_call(call, self._spent))

    async def stream_response(
        self, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """The events of the model's response, or the last one of the recorded response."""
        if open_context() is None:
            async for event in self.inner.stream_response(*args, **kwargs):
                yield event
            return
        events: asyncio.Queue[TResponseStreamEvent | None] = asyncio.Queue()
        last: list[ResponseCompletedEvent] = []

        async def call() -> Any:
            last.clear()
            done: list[Any] = []
            stream = cast("Any", self.inner.stream_response(*args, **kwargs))
            async with aclosing(stream):
                async for event in stream:
                    if isinstance(event, ResponseCompletedEvent):
                        last.append(event)
                        continue
                    if isinstance(event, ResponseOutputItemDoneEvent):
                        done.append(event.item)
                    events.put_nowait(event)
            if not last:
                raise ModelBehaviorError("Model did not produce a final response!")
            if not last[0].response.output:
                last[0].response.output = done
            return _written(_response_in(last[0].response))

        work = asyncio.ensure_future(self._execution.model_call(call, self._spent))
        work.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (passed := await events.get()) is not None:
                yield passed
            recorded = await work
            yield last[0] if last else _completed(_read(recorded))
        finally:
            while not work.done():
                work.cancel()
                await asyncio.wait([work])

    def get_retry_advice(self, request: Any) -> Any:
        """The advice of the model itself."""
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model itself."""
        await self.inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)

    def _spent(self, response: Any) -> Mapping[str, float]:
        used = response["usage"]
        tokens = Tokens(used["input_tokens"], used["output_tokens"])
        dollars = cost_of(tokens, "openai", str(getattr(self.inner, "model", "")))
        return {"tokens": tokens.input_tokens + tokens.output_tokens, "dollars": dollars or 0.0}


class RecordedProvider(ModelProvider):
    """A provider of models whose responses are recorded."""

    def __init__(self, provider: ModelProvider, execution: AgentExecution) -> None:
        self.inner: ModelProvider = (
            provider.inner if isinstance(provider, RecordedProvider) else provider
        )
        self._execution = execution
        self._models: dict[int, RecordedModel] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_model(self, model_name: str | None) -> Model:
        """The model of that name, recorded."""
        model = self.inner.get_model(model_name)
        known = self._models.get(id(model))
        if known is None:
            known = self._models[id(model)] = RecordedModel(model, self._execution)
        return known

    async def aclose(self) -> None:
        """Close the provider itself."""
        await self.inner.aclose()


def _written(response: ModelResponse) -> Any:
    # What the server left out stays out: the items are sent to it again.
    return _RESPONSE.dump_python(
        response, mode="json", by_alias=True, exclude_unset=True, warnings=False
    )


def _read(written: Any) -> ModelResponse:
    try:
        return _RESPONSE.validate_python(written)
    except ValidationError as error:
        raise DecodeError(
            "the recorded response of a model does not fit this version of openai-agents",
            hint="let runs that began earlier finish with the version that recorded them",
        ) from error


def _response_in(response: Response) -> ModelResponse:
    """The response at the end of a stream, in the form of `get_response`."""
    used = response.usage
    usage = Usage()
    if used is not None:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    return ModelResponse(output=response.output, usage=usage, response_id=response.id)


def _completed(response: ModelResponse) -> ResponseCompletedEvent:
    """The last event of a stream, made from what was recorded."""
    used = response.usage
    usage = None
    if used.requests:
        usage = ResponseUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    made = Response(
        id=response.response_id or "",
        created_at=0,
        model="",
        object="response",
        output=response.output,
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
        usage=usage,
    )
    return ResponseCompletedEvent(response=made, sequence_number=0, type="response.completed")

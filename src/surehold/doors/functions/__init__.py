"""Durable functions: workflows whose recorded calls are their progress.

Holds workflows, steps, and the recorded clock, chance and waits. What an effect is belongs to
`engine.runs.effects`; graphs, agents and fleets have rooms of their own.
"""

from __future__ import annotations

from surehold.doors.functions.asking import Update as Update
from surehold.doors.functions.asking import on_query as on_query
from surehold.doors.functions.asking import query as query
from surehold.doors.functions.asking import receive_update as receive_update
from surehold.doors.functions.asking import update as update
from surehold.doors.functions.continuing import continue_as_new as continue_as_new
from surehold.doors.functions.definition import AsyncStep as AsyncStep
from surehold.doors.functions.definition import AsyncWorkflow as AsyncWorkflow
from surehold.doors.functions.definition import Step as Step
from surehold.doors.functions.definition import Workflow as Workflow
from surehold.doors.functions.definition import step as step
from surehold.doors.functions.definition import workflow as workflow
from surehold.doors.functions.locks import lock as lock
from surehold.doors.functions.racing import Selected as Selected
from surehold.doors.functions.racing import race as race
from surehold.doors.functions.racing import select as select
from surehold.doors.functions.recorded import gather as gather
from surehold.doors.functions.recorded import now as now
from surehold.doors.functions.recorded import patched as patched
from surehold.doors.functions.recorded import publish as publish
from surehold.doors.functions.recorded import random as random
from surehold.doors.functions.recorded import set_attributes as set_attributes
from surehold.doors.functions.recorded import uuid4 as uuid4
from surehold.doors.functions.waits import receive as receive
from surehold.doors.functions.waits import sleep as sleep
from surehold.doors.functions.waits import wait_for as wait_for

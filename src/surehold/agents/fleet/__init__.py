"""Fleets: several participants that a manager directs in rounds."""

from __future__ import annotations

from surehold.agents.fleet.builder import FleetBuilder as FleetBuilder
from surehold.agents.fleet.fleet import Fleet as Fleet
from surehold.agents.fleet.fleet import FleetResult as FleetResult
from surehold.agents.fleet.fleet import imported_checkpoint as imported_checkpoint
from surehold.agents.fleet.settings import ApprovalSettings as ApprovalSettings
from surehold.agents.fleet.settings import Limits as Limits
from surehold.agents.fleet.settings import PlanReview as PlanReview
from surehold.agents.fleet.settings import Settings as Settings
from surehold.agents.fleet.workflow_file import build_fleet as build_fleet
from surehold.agents.fleet.workflow_file import (
    create_checkpoint_storage as create_checkpoint_storage,
)
from surehold.agents.fleet.workflow_file import read_workflow as read_workflow

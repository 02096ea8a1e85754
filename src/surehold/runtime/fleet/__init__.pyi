from surehold.runtime.fleet.builder import FleetBuilder as FleetBuilder
from surehold.runtime.fleet.builder import MagenticFleet as MagenticFleet
from surehold.runtime.fleet.fleet import Fleet as Fleet
from surehold.runtime.fleet.fleet import FleetResult as FleetResult
from surehold.runtime.fleet.settings import ApprovalSettings as ApprovalSettings
from surehold.runtime.fleet.settings import Limits as Limits
from surehold.runtime.fleet.settings import PlanReview as PlanReview
from surehold.runtime.fleet.settings import Settings as Settings
from surehold.runtime.fleet.workflow_file import build_fleet as build_fleet
from surehold.runtime.fleet.workflow_file import (
    create_checkpoint_storage as create_checkpoint_storage,
)
from surehold.runtime.fleet.workflow_file import read_workflow as read_workflow

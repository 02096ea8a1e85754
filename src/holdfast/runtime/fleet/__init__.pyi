from holdfast.runtime.fleet.builder import FleetBuilder as FleetBuilder
from holdfast.runtime.fleet.builder import MagenticFleet as MagenticFleet
from holdfast.runtime.fleet.fleet import Fleet as Fleet
from holdfast.runtime.fleet.fleet import FleetResult as FleetResult
from holdfast.runtime.fleet.settings import ApprovalSettings as ApprovalSettings
from holdfast.runtime.fleet.settings import Limits as Limits
from holdfast.runtime.fleet.settings import PlanReview as PlanReview
from holdfast.runtime.fleet.settings import Settings as Settings
from holdfast.runtime.fleet.workflow_file import build_fleet as build_fleet
from holdfast.runtime.fleet.workflow_file import (
    create_checkpoint_storage as create_checkpoint_storage,
)
from holdfast.runtime.fleet.workflow_file import read_workflow as read_workflow

from surehold.web.actions.handler import Actions as Actions

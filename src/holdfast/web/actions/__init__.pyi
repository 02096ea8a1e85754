from holdfast.web.actions.handler import Actions as Actions

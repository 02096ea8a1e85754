from surehold.engine.runs.messages.mail import Mail as Mail
from surehold.engine.runs.messages.publishing import status_of as status_of
from surehold.engine.runs.messages.sending import append_from_outside as append_from_outside
from surehold.engine.runs.messages.sending import check_topic as check_topic
from surehold.engine.runs.messages.sending import deliver as deliver
from surehold.engine.runs.messages.sending import message_note as message_note
from surehold.engine.runs.messages.sending import send as send

from holdfast.integrations.langgraph.importer import check_file as check_file
from holdfast.integrations.langgraph.importer import import_threads as import_threads
from holdfast.integrations.langgraph.saver import HoldfastSaver as HoldfastSaver

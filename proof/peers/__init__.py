"""The same trials on other libraries, each behind an adapter of four functions.

An adapter is a module; each function runs in a process of its own and tells what it does:

- ``save_for_ever(tell, directory)`` goes on from the newest state that is there and saves one
  after the other, telling the number of each once its save has returned;
- ``look(tell, directory)`` tells the number and text of the state that a resume would begin with,
  and of all that are there;
- ``begin(tell, directory)`` starts a run whose second step acts on the world and never ends;
- ``resume(tell, directory)`` goes on with that run, whose second step now ends.
"""

from __future__ import annotations

"""toymq://name, a system for onceonly: queues in the memory of this process."""

from onceonly.systems import System, imported

SYSTEM = System(name="toy broker", transport=imported("onceonly_toymq.broker"), in_process=True)

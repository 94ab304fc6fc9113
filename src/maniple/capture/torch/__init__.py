"""From an unmodified PyTorch training step to a program.

```
captured = capture(train_step, (model, optimizer), (batch,))
captured.program                                    # the whole step: forward, backward, update
signature(train_step, (model, optimizer), (batch,)) # a change of this means capturing again
```
"""

from maniple.capture.torch.binding import Binding
from maniple.capture.torch.captured import Captured, capture
from maniple.capture.torch.guards import Signature, describe_change, signature
from maniple.capture.torch.promote import PromoteFloat64

__all__ = ["Binding", "Captured", "PromoteFloat64", "Signature", "capture", "describe_change", "signature"]

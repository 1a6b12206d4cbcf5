"""Every target by its name."""

from fuzz import codec_targets, connector_targets, file_targets, lookupd_targets, nsqd_targets
from fuzz.target import Target

_MODULES = (nsqd_targets, lookupd_targets, connector_targets, codec_targets, file_targets)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}

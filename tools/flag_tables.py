"""Print docs/flags.md, what the daemons' --help says as tables. Run: python tools/flag_tables.py > docs/flags.md"""

import re

from pyspark_nsq.broker.flags import ExitError, resolve
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.nsqd_options import DEPRECATED_FLAGS, NsqdOptions

HEAD = """# Flags of the broker

<!-- Made by tools/flag_tables.py: change the flags in broker/nsqd_options.py or broker/lookupd_options.py instead. -->

`nsqd --help` and `nsqlookupd --help` say the same. A flag is written `--name=value`, `-name=value`, or with a space
between; one that takes no value stands alone, or as `--name=false`. A config file (`--config`, TOML) has the same names
with `_` for `-`, but for the few that Go's has under others, such as `id` for `node-id` and `nsqlookupd_tcp_addresses`,
a list; the command line wins. [The broker](broker.md) tells what they are about, [the container](container.md) how they
come from the environment.

The texts are those of Go's nsqd. One of them is not true of ours: `--sync-every` counts appends to the topics' logs,
of which one takes all that comes for a topic at once.
"""
FLAG = re.compile(
    r"^  -(?P<name>\S+)(?: (?P<kind>\S+))?\n    \t(?P<usage>.*?)(?: \(default (?P<default>.*)\))?$", re.MULTILINE
)


def page() -> str:
    return f"{HEAD}\n## nsqd\n\n{table(NsqdOptions, 'nsqd')}\n## nsqlookupd\n\n{table(LookupdOptions, 'nsqlookupd')}"


def table(options_type: type, program: str) -> str:
    rows = [row(match) for match in FLAG.finditer(help_text(options_type, program))]
    return "\n".join(["| flag | value | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def help_text(options_type: type, program: str) -> str:
    try:
        resolve(options_type, program, ["--help"], DEPRECATED_FLAGS if program == "nsqd" else None)
    except ExitError as asked:
        return asked.out or asked.err
    raise AssertionError("it is not asked for help")


def row(flag: re.Match[str]) -> str:
    usage = flag["usage"].replace("|", "\\|").replace("<", "\\<")
    # Where the text itself tells the default, the value is this machine's.
    default = flag["default"] if flag["default"] and "default" not in usage else ""
    return f"| `--{flag['name']}` | {flag['kind'] or ''} | {f'`{default}`' if default else ''} | {usage} |"


if __name__ == "__main__":
    print(page(), end="")

"""What holds for every test of the project."""

import os
import signal

# Started in the background, by nohup or by a test runner's worker, Python ignores these, and so does all that tests
# start: they would wait in vain for a command to end at Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests of every room share a process. With gRPC's handlers in it, a fork may end before it has become the program that
# it is for, such as Spark's gateway.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

"""What holds for every test of the project."""

import signal

# Started in the background, by nohup or by a test runner's worker, Python ignores these, and so does all that tests
# start: they would wait in vain for a command to end at Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

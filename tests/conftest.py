"""What all tests start from."""

import signal

# Shells start background jobs with interrupts ignored, and what the tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""Where work runs: streams, events, copies and memory behind one protocol."""

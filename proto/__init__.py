"""What crosses a wire, as bytes and columns: no sockets, no clock, no Spark."""

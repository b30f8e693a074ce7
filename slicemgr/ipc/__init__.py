"""Communication between the processes of a node: the wake-up datagram, console streams, WebSocket frames."""

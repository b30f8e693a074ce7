"""How the processes of one node talk: the wake-up datagram, console streams, WebSocket frames."""

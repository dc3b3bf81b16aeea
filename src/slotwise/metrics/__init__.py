"""What a master tells Prometheus: fed from the machines' events and read from their state, never written by them."""

"""What integration tests stand on: real brokers, their consumers, and the books that have to balance at the end."""

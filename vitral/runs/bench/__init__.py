"""`vitral bench`: how fast engines are on this machine."""

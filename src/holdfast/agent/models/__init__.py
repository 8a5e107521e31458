"""Models: the protocol, the implementations (APIs and local files), and which one is used."""

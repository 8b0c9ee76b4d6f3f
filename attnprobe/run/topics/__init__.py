"""The options that commands share, by topic. A request inherits the topics that it has."""

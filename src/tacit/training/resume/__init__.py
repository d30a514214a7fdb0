"""How does a run go on where it stopped? Its state on disk, and which loss and model that belongs to."""

from pylucebox.testing._tiny import TinyModelFiles, TinySpec, write_tiny_model
__all__ = ["TinyModelFiles", "TinySpec", "write_tiny_model"]

"""A language model on a two-layer LSTM."""

from __future__ import annotations

from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LSTMLanguageModel(nn.Module):
    """Tokens `[batch, time]` to logits `[batch, time, vocabulary]`, and the LSTM's state after them."""

    def __init__(self, vocabulary: int = 50, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        hidden, state = self.lstm(self.embedding(tokens), state)
        return self.head(hidden), state

"""A U-Net (Ronneberger et al., 2015) with two levels of skips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def double_convolution(inside: int, outside: int) -> nn.Sequential:
    """Two rounds of convolution, batch norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Images `[batch, 3, height, width]` to class scores `[batch, 4, height, width]`."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = double_convolution(3, width)
        self.down2 = double_convolution(width, 2 * width)
        self.bottom = double_convolution(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = double_convolution(4 * width, 2 * width)
        self.merge1 = double_convolution(3 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.up2(self.bottom(F.max_pool2d(skip2, 2)))
        x = self.merge2(torch.cat([skip2, x], dim=1))
        x = F.interpolate(x, size=skip1.shape[2:], mode="bilinear", align_corners=False)
        return self.head(self.merge1(torch.cat([skip1, x], dim=1)))

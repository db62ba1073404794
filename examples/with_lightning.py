"""Lightning: one callback. It starts its two processes by itself."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from vramscope.profiler.frameworks.lightning import MemoryCallback


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def training_step(self, batch, index):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    data = TensorDataset(torch.randn(320, 64), torch.randint(10, (320,)))
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=2 if torch.cuda.device_count() != 1 else 1,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[MemoryCallback(run_name="with-lightning")],
    )
    trainer.fit(Model(), DataLoader(data, batch_size=16))
    print(f"with-lightning: rank {trainer.global_rank}, {trainer.global_step} steps")

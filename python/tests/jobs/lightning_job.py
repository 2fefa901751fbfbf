"""Lightning."""

import os
import warnings

import lightning
from common import BATCH, STEPS, Samples, network
from torch import optim
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, x, index):
        return self.network(x).square().mean()

    def configure_optimizers(self):
        return optim.SGD(self.parameters(), lr=0.01)


ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
)
trainer.fit(Model(), DataLoader(Samples(STEPS), batch_size=BATCH))

"""The Hugging Face Trainer."""

import os
import tempfile

from common import BATCH, Samples, delay_here, end, network
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return {"loss": self.network(x).square().mean()}


def collate(samples):
    import torch

    # The Trainer deals the samples to the ranks as it likes; each batch is collated once.
    delay_here()
    return {"x": torch.stack(samples)}


arguments = TrainingArguments(
    output_dir=os.path.join(tempfile.gettempdir(), "laggard-hf"),
    per_device_train_batch_size=BATCH,
    num_train_epochs=1,
    gradient_accumulation_steps=int(os.environ.get("ACCUMULATE", "1")),
    save_strategy="no",
    logging_steps=10,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
    ddp_backend="gloo",
)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
steps = int(os.environ.get("STEPS", "60"))
accumulate = arguments.gradient_accumulation_steps
# The Trainer gives each rank every nth batch.
trainer = Trainer(
    Model(),
    arguments,
    train_dataset=Samples(ranks * steps * accumulate, slow=False),
    data_collator=collate,
)
trainer.train()
del trainer
end()

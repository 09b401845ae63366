"""Training programs of many kinds, which time by a stopwatch of their own how long they wait for
input. Plain: none knows of Headgate.

    python kinds.py KIND RESULT

RESULT is a JSON file: the steps, and the mean milliseconds that each step but the first waited.
Samples take a random time to read. Most programs validate in between, which also takes a while to
read, and is no step.
"""

import json
import random
import sys
import time
from pathlib import Path

BATCH, TRAINED, VALIDATED, EPOCHS, WIDTH = 8, 480, 80, 4, 16
"""Samples of a batch, of an epoch, and of a validation, numbers of a sample."""
STEPS = TRAINED // BATCH * EPOCHS
PER_SAMPLE = 0.0004, 0.0020
"""Seconds that reading a sample takes, at least and at most."""
KINDS = {}


def kind(function):
    KINDS[function.__name__.replace("_", "-")] = function
    return function


class Stopwatch:
    """Adds up waits, but for those of the first step."""

    def __init__(self):
        self.seconds, self.steps, self.since = 0.0, 0, None

    def start(self):
        self.since = time.perf_counter()

    def stop(self):
        self.seconds += time.perf_counter() - self.since

    def stepped(self, *_, **__):
        self.steps += 1
        if self.steps == 1:
            self.seconds = 0.0

    def write(self, path):
        milliseconds = self.seconds / (self.steps - 1) * 1e3
        Path(path).write_text(json.dumps({"steps": self.steps, "milliseconds": milliseconds}))


class Unwatched(Stopwatch):
    """For validation."""

    def stop(self):
        pass


def read(indices, luck):
    """Samples and labels, slowly: the first of both is learned from the second."""
    import numpy as np

    time.sleep(sum(luck.uniform(*PER_SAMPLE) for _ in indices))
    draw = np.random.default_rng(indices[0])
    x = draw.normal(size=(len(indices), WIDTH)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


# --- PyTorch --------------------------------------------------------------------------------------


def loader_of(watch, samples=TRAINED, form=tuple, **options):
    """A loader without workers, whose every batch is timed, and the dataset it reads."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __init__(self):
            self.luck = random.Random(samples)

        def __len__(self):
            return samples

        def __getitem__(self, index):
            return self.__getitems__([index])

        def __getitems__(self, indices):
            watch.start()
            return read(indices, self.luck)

    def collate(batch):
        result = form(map(torch.from_numpy, batch))
        watch.stop()
        return result

    return DataLoader(Samples(), BATCH, collate_fn=collate, **options)


def network(features=WIDTH, classes=2):
    from torch import nn

    return nn.Sequential(nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, classes))


def adam(model, watch):
    import torch

    optimizer = torch.optim.Adam(model.parameters())
    optimizer.register_step_post_hook(watch.stepped)
    return optimizer


def validate(model, batches):
    import torch

    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in batches)
    model.train()
    return right


@kind
def plain_loop(watch, every=1):
    from torch import nn

    model = network()
    optimizer = adam(model, watch)
    batches, held_out = loader_of(watch), loader_of(Unwatched(), VALIDATED)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(batches, 1):
            (nn.functional.cross_entropy(model(x), y) / every).backward()
            if number % every == 0:
                optimizer.step()
                optimizer.zero_grad()
        validate(model, held_out)


@kind
def accumulation(watch):
    plain_loop(watch, every=4)


@kind
def loader_workers(watch):
    """The loader's processes read ahead: only a part of reading is waited for."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return TRAINED

        def __getitem__(self, index):
            return [part[0] for part in read([index], random.Random(index))]

    model = network()
    optimizer = adam(model, watch)
    batches = DataLoader(Samples(), BATCH, num_workers=2, persistent_workers=True)
    for _ in range(EPOCHS):
        iterator = iter(batches)
        for _ in range(len(batches)):
            watch.start()
            x, y = next(iterator)
            watch.stop()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            until = time.perf_counter() + 0.003
            while time.perf_counter() < until:
                torch.relu(x)


@kind
def gan(watch):
    import torch

    generator, judge = network(4, WIDTH), network(WIDTH, 1)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.01)
    of_generator = adam(generator, watch)
    for _ in range(EPOCHS):
        for x, _ in loader_of(watch):
            of_judge.zero_grad()
            fake = generator(torch.randn(len(x), 4))
            (judge(fake.detach()).mean() - judge(x).mean()).backward()
            of_judge.step()
            of_generator.zero_grad()
            (-judge(fake).mean()).backward()
            of_generator.step()


@kind
def two_phases(watch):
    """The last layer alone, then all, each with an optimizer and a loader of its own."""
    from torch import nn

    model = network()
    for trained in (model[-1], model):
        optimizer = adam(trained, watch)
        for _ in range(EPOCHS // 2):
            for x, y in loader_of(watch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            validate(model, loader_of(Unwatched(), VALIDATED))


@kind
def trainer(watch):
    """Of Hugging Face, with accumulation, validation and logging."""
    import tempfile

    from torch import nn
    from transformers import Trainer, TrainingArguments

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x, labels):
            scores = self.layers(x)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    def named(parts):
        x, y = parts
        return {"x": x, "labels": y}

    class TimedTrainer(Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(loader_of(watch, form=named))

        def get_eval_dataloader(self, eval_dataset=None):
            return self.accelerator.prepare(loader_of(Unwatched(), VALIDATED, form=named))

    model = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        TimedTrainer(
            model,
            arguments,
            train_dataset=[0],
            eval_dataset=[0],
            optimizers=(adam(model, watch), None),
        ).train()


@kind
def lightning(watch):
    """With accumulation, its sanity check, and validation twice an epoch."""
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch, index):
            self.log("loss", self.training_step(batch, index))

        def configure_optimizers(self):
            return adam(self, watch)

    Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        accumulate_grad_batches=2,
        val_check_interval=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), loader_of(watch), loader_of(Unwatched(), VALIDATED))


@kind
def accelerate(watch):
    """With `accumulate()`."""
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = network()
    model, optimizer, batches, held_out = accelerator.prepare(
        model, adam(model, watch), loader_of(watch), loader_of(Unwatched(), VALIDATED)
    )
    for _ in range(EPOCHS):
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        validate(model, held_out)


@kind
def skorch(watch):
    """With its own validation."""
    import torch
    from skorch import NeuralNet
    from skorch.helper import predefined_split
    from torch import nn

    train, held_out = loader_of(watch), loader_of(Unwatched(), VALIDATED)

    class Timed(NeuralNet):
        def get_iterator(self, dataset, training=False):
            return train if training else held_out

        def initialize_optimizer(self, *args, **kwargs):
            super().initialize_optimizer(*args, **kwargs)
            self.optimizer_.register_step_post_hook(watch.stepped)
            return self

    Timed(
        network(),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        max_epochs=EPOCHS,
        train_split=predefined_split(held_out.dataset),
    ).fit(train.dataset, None)


# --- Keras, TensorFlow, JAX -----------------------------------------------------------------------


def compiled(keras, model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"], **options)
    return model


def dense(keras, kind=None):
    layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(2)]
    return (kind or keras.Sequential)([keras.Input((WIDTH,)), *layers])


def batches_of(watch, samples=TRAINED):
    """Batches of an epoch, which are timed where they are read."""
    luck = random.Random(samples)
    for first in range(0, samples, BATCH):
        watch.start()
        batch = read(list(range(first, first + BATCH)), luck)
        watch.stop()
        yield batch


def fit_pipeline(keras, watch):
    """The compiled step reads a `tf.data` pipeline itself. So it is timed by the clock of
    TensorFlow, from when the step begins to compute until the batch is there. If the batch is there
    at once, it may have been read before the step: then from when Keras begins it.
    """
    import tensorflow as tf

    asked, arrived = (tf.Variable(0.0, dtype=tf.float64) for _ in range(2))

    class Timed(keras.Sequential):
        def train_step(self, data):
            asked.assign(tf.timestamp())  # which waits for no data
            with tf.control_dependencies(tf.nest.flatten(data)):
                now = tf.timestamp()
            with tf.control_dependencies([arrived.assign(now)]):
                return super().train_step(tf.nest.map_structure(tf.identity, data))

    class Waits(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.began = time.time()

        def on_train_batch_end(self, batch, logs=None):
            waited = float(arrived.numpy()) - float(asked.numpy())
            watch.seconds += waited if waited > 1e-3 else float(arrived.numpy()) - self.began
            watch.stepped()

    def pipeline(samples):
        kinds = tf.TensorSpec((BATCH, WIDTH), tf.float32), tf.TensorSpec((BATCH,), tf.int64)
        return tf.data.Dataset.from_generator(
            lambda: batches_of(Unwatched(), samples), output_signature=kinds
        )

    compiled(keras, dense(keras, Timed), jit_compile=False).fit(
        pipeline(TRAINED),
        epochs=EPOCHS,
        validation_data=pipeline(VALIDATED),
        callbacks=[Waits()],
        verbose=2,
    )


@kind
def keras_over_tensorflow(watch):
    import keras

    fit_pipeline(keras, watch)


@kind
def tf_keras(watch):
    import tf_keras

    fit_pipeline(tf_keras, watch)


@kind
def keras_over_jax(watch):
    import keras

    class Batches(keras.utils.PyDataset):
        def __init__(self, watch, samples):
            super().__init__()
            self.watch, self.samples, self.luck = watch, samples, random.Random(samples)

        def __len__(self):
            return self.samples // BATCH

        def __getitem__(self, index):
            self.watch.start()
            batch = read(list(range(index * BATCH, (index + 1) * BATCH)), self.luck)
            self.watch.stop()
            return batch

    compiled(keras, dense(keras)).fit(
        Batches(watch, TRAINED),
        epochs=EPOCHS,
        validation_data=Batches(Unwatched(), VALIDATED),
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=watch.stepped)],
        verbose=2,
        shuffle=False,
    )


@kind
def keras_over_torch(watch):
    import keras

    compiled(keras, dense(keras)).fit(
        loader_of(watch),
        epochs=EPOCHS,
        validation_data=loader_of(Unwatched(), VALIDATED),
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=watch.stepped)],
        verbose=2,
    )


def optax_step():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    optimizer = optax.adam(1e-3)

    def loss_of(weights, x, y):
        scores = jax.nn.relu(x @ weights[0]) @ weights[1]
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    @jax.jit
    def step(weights, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    draw = np.random.default_rng(0)
    shapes = (WIDTH, 256), (256, 2)
    weights = [jnp.array(0.1 * draw.normal(size=shape), jnp.float32) for shape in shapes]
    return step, weights, optimizer.init(weights), jax.jit(loss_of)


@kind
def optax(watch):
    """JAX over a loader of PyTorch, as a tutorial of JAX has it."""
    step, weights, state, loss_of = optax_step()
    batches, held_out = loader_of(watch), loader_of(Unwatched(), VALIDATED)
    for _ in range(EPOCHS):
        for x, y in batches:
            weights, state, loss = step(weights, state, x.numpy(), y.numpy())
            watch.stepped()
        losses = [float(loss_of(weights, x.numpy(), y.numpy())) for x, y in held_out]
        print(float(loss), sum(losses) / len(losses))


def main():
    program, result = sys.argv[1:]
    watch = Stopwatch()
    KINDS[program](watch)
    watch.write(result)


if __name__ == "__main__":
    main()

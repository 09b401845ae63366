"""A network of two layers in plain JAX and Optax that reads handwritten digits: 1,797 images of 8 x
8 pixels.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import headgate.jax as hg


def digits(seed):
    """Training and test set, stratified 80 : 20, pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    return train_test_split(
        images, labels.astype("int32"), test_size=0.2, stratify=labels, random_state=seed
    )


def shuffled(images, labels, batch, seed):
    """The batches of an epoch: the same in every worker, and again after a resume."""
    order = np.random.default_rng(seed).permutation(len(images))
    return [
        (images[part], labels[part]) for part in np.split(order, range(batch, len(order), batch))
    ]


def initial(key, hidden):
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (64, hidden)) / 8, "b": jnp.zeros(hidden)},
        "out": {"w": jax.random.normal(second, (hidden, 10)) / hidden**0.5, "b": jnp.zeros(10)},
    }


def logits(params, images):
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


@jax.jit
def accuracy(params, images, labels):
    return jnp.mean(jnp.argmax(logits(params, images), axis=1) == labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    hg.init()
    train_images, test_images, train_labels, test_labels = digits(args.seed)
    optimizer = optax.adam(args.lr)
    params = initial(jax.random.key(args.seed), args.hidden)
    params, opt_state = hg.prepare(params, optimizer.init(params))

    @jax.jit
    def step(params, opt_state, images, labels):
        def loss_of(params):
            losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
            return jnp.mean(losses)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    for epoch in hg.epochs(args.epochs):
        losses = []
        for images, labels in hg.batches(
            shuffled(train_images, train_labels, args.batch, args.seed + epoch)
        ):
            params, opt_state, loss = step(params, opt_state, images, labels)
            hg.report(loss=loss, state=(params, opt_state))
            losses.append(loss)
        right = accuracy(params, test_images, test_labels)
        hg.report(accuracy=right)
        mean = np.mean([float(loss) for loss in losses]) if losses else float("nan")
        print(
            f"epoch {epoch + 1}/{args.epochs}  loss {mean:.4f}  test accuracy {right:.2%}",
            flush=True,
        )
    print(f"test accuracy {accuracy(params, test_images, test_labels):.2%}")


if __name__ == "__main__":
    main()

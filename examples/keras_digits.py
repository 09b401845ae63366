"""A small convolutional network in Keras that reads handwritten digits, bundled with scikit-learn.
Runs over each back end of Keras 3 (KERAS_BACKEND), and over several workers with
KERAS_BACKEND=jax.
"""

import argparse

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import headgate.keras as hg


def digits(seed):
    """Training and test set, stratified 80 : 20, pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    strategy = hg.strategy()
    train_x, test_x, train_y, test_y = digits(args.seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(args.channels, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(2 * args.channels, 3, padding="same", activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dropout(0.2),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(5e-3), loss, metrics=["accuracy"])

    model = hg.prepare(model)
    model.fit(
        train_x,
        train_y,
        batch_size=args.batch,
        epochs=args.epochs,
        verbose=2,
        callbacks=[hg.callback()],
    )
    right = model.evaluate(test_x, test_y, verbose=0, return_dict=True)["accuracy"]
    hg.report(test_accuracy=right)
    print(f"test accuracy {right:.2%}")


if __name__ == "__main__":
    main()

"""The inputs that llama.cpp's recorded outputs under data/ come from, and that llmkit must read alike.

Owns the texts, the tasks and a base file of made-up log-probabilities. `record.py` feeds them to llama-perplexity.
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"

TEXT = """Once upon a time there was a little boy named Tim who lived near a big forest. Every morning he put on his red
hat and went out to look for mushrooms. His mother always said: "Be back before the sun goes down!" And he
always was.

One day Tim saw a small brown dog under a tree. The dog was wet and cold, and it looked very sad. "Do not be
afraid," said Tim. He gave the dog a piece of his bread. The dog was happy and ran around him three times.
Then it went away between the trees, looked back, and barked, as if it wanted to say: come with me!

Tim followed the dog for a long time. They came to a river. On the other side stood an old house with a blue
door. In the window sat an old woman, and she waved her hand. "You have found my dog!" she called. "Thank you,
thank you! Come in and have some soup." So Tim went over the bridge, and they ate hot soup together, and the
dog slept beside the fire.

When the sun went down, Tim ran home. His mother was waiting at the gate. He told her about the dog, the
river, and the old woman. She smiled. "That is your grandmother's sister," she said. "Tomorrow we will visit
her together, and bring her a basket of apples." And that is what they did. From that day on they were all
good friends, and the dog came to see Tim every week.
"""

HELLASWAG_TASKS = [
    ("Tim has a ball. He", 0, ("throws the ball to Sue.", "eats the sky with a door.", "is a ball.", "sun red.")),
    ("Lily was very sad because", 2, ("the the the.", "she was a tree.", "she lost her toy.", "happy happy day it.")),
    ("One day, a girl went to the park. She saw", 1, ("of and to.", "a big dog.", "him was going.", "three.")),
    ("The cat was hungry. It", 3, ("was not a mom.", "said no yes no.", "flew to the.", "wanted to eat some fish.")),
    ("Mom said: do not", 0, ("be afraid.", "of a the house.", "yellow to run it.", "and then, who.")),
    ("They played all day and then", 1, ("the very a.", "they went home to sleep.", "it box it.", "saw no of.")),
    ("Tom saw a red car. He said,", 2, ("of the in.", "was it that did.", "look at the car!", "sad the went went.")),
    ("The bird sat on a tree and", 0, ("sang a song.", "a the bird of.", "they was many.", "blue you go were.")),
]  # fmt: skip

WINOGRANDE_TASKS = [
    ("The ball did not fit into the box because the _ was too big to go inside of it.", "ball", "box", 1),
    ("Tim gave Lily a flower because _ had asked for one many times that day.", "Tim", "Lily", 2),
    ("Mom thanked Ben for the help that _ had given to her in the garden.", "Mom", "Ben", 2),
    ("The dog ran after the cat, but the _ climbed up a tall tree and stayed.", "dog", "cat", 2),
    ("Sue likes the sun more than the rain, so she plays outside when the _ comes.", "sun", "rain", 1),
    ("Tom took the toy from the bag, and then the _ was empty for the whole day.", "toy", "bag", 2),
]

MULTIPLE_CHOICE_TASKS = [
    ("Where do fish live? They live in the", ["water.", "tree.", "car.", "sky."], 0),
    ("What does a cat say? A cat says", ["moo.", "meow.", "tweet."], 1),
    ("The little girl was happy because", ["she fell down.", "she had a new toy."], 0),
    ("Once upon a", ["dog.", "time, there was a girl.", "blue.", "very.", "run to the."], 1),
    ("When it is cold, you put on your", ["warm coat.", "river."], 1),
]


def hellaswag_file() -> str:
    """Six lines a task."""
    return "\n".join(f"{start}\n{gold}\n" + "\n".join(endings) for start, gold, endings in HELLASWAG_TASKS) + "\n"


def winogrande_file() -> str:
    """A line of CSV a task; sentences stand in quotes."""
    rows = [f'{i},"{s}",{a},{b},{answer}\n' for i, (s, a, b, answer) in enumerate(WINOGRANDE_TASKS)]
    return "".join(rows)


def _string(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _answers(answers: list[str], right: int) -> bytes:
    labels = [int(i == right) for i in range(len(answers))]
    return struct.pack("<I", len(answers)) + b"".join(map(_string, answers)) + struct.pack(f"<{len(labels)}i", *labels)


def multiple_choice_file(tasks: list[tuple[str, list[str], int]] = MULTIPLE_CHOICE_TASKS) -> bytes:
    """The binary format, with an empty second set of answers."""
    bodies = [_string(q) + _answers(answers, right) + _answers([], 0) for q, answers, right in tasks]
    starts = np.cumsum([4 + 4 * len(bodies)] + [len(body) for body in bodies])[:-1]
    return struct.pack(f"<I{len(bodies)}I", len(bodies), *starts.tolist()) + b"".join(bodies)


def log_probs(tokens: NDArray[np.int32], n_vocab: int, seed: int = 0) -> NDArray[np.float64]:
    """Made up: random, but in six of ten rows the text's token is likely. [n, n_vocab], normalised."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(tokens.size, n_vocab)) * 2
    logits[np.arange(tokens.size), tokens] += np.where(rng.random(tokens.size) < 0.6, 9, 3)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def base_file(tokens: NDArray[np.int32], n_ctx: int, n_vocab: int) -> bytes:
    """A base file over all whole chunks of the tokens, written the obvious way."""
    n_chunks = tokens.size // n_ctx
    tokens = tokens[: n_chunks * n_ctx]
    out = [b"_logits_", struct.pack("<Iii", n_ctx, n_vocab, n_chunks), tokens.astype("<i4").tobytes()]
    scored = tokens.reshape(n_chunks, n_ctx)[:, n_ctx // 2 + 1 :].ravel()
    for row in log_probs(scored, n_vocab):
        low = max(row.min(), row.max() - 16)
        scale = (row.max() - low) / 65535
        q = np.rint(np.maximum(row - low, 0) / scale).astype("<u2").tobytes()
        out.append(struct.pack("<ff", scale, low) + q + b"\0\0" * (n_vocab % 2))
    return b"".join(out)

"""What the fields of bodies may hold: JSON's types as llama.cpp's server takes them, with messages in its words.

Owns the types. A number is a number: no string and no truth value stands for one, but 3.0 is a whole number.
"""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import PydanticCustomError

from llmkit.serving.json_body import json_type

INT_MAX = 2147483647


class Body(BaseModel):
    """A body: unknown fields are left alone, as both llama.cpp's and OpenAI's clients expect; null counts as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)


def wrong(message: str) -> PydanticCustomError:
    """A field's value that cannot be: what to say of it behind the field's name."""
    return PydanticCustomError("value", "{message}", {"message": message})


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"type must be number, but is {json_type(value)}")
    try:
        return float(value)
    except OverflowError:
        raise wrong("the number is too large") from None


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(f"type must be number, but is {json_type(value)}")
        if value != int(value):
            raise wrong(f"type must be a whole number, but {value} is none")
        if not low <= value <= high:
            raise wrong(f"Value must be between {low} <= value <= {high}, but got {int(value)}")
        return int(value)

    return check


def whole(low: int, high: int = INT_MAX) -> Any:
    """The type of whole numbers from low to high."""
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Annotated[int, BeforeValidator(_whole(low, high)), WithJsonSchema(schema)]


Number = Annotated[float, BeforeValidator(_number), WithJsonSchema({"type": "number"})]
Seed = whole(-1, 0xFFFFFFFF)


def _texts(value: Any) -> list[str]:
    """A string stands for a list of it."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise wrong("type must be a string or an array of strings")
    return items


Texts = Annotated[list[str], BeforeValidator(_texts, json_schema_input_type=str | list[str])]
Prompt = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}, {"type": "object"}]})
]
"""One prompt or several; prompts.py says what is wrong with one."""

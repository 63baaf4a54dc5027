"""Random requests after the published OpenAPI document, sound and not: no answer is a 500, each is one it names."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.make_models import make_model
from tests.serving.server_process import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    model = make_model(folder / "tiny.gguf", tokenizer="bpe", n_ctx_train=256)
    options = ("-c", "256", "-n", "3", "--metrics", "--props", "--slot-save-path", str(folder))
    with Server(model, *options) as server:
        yield server
        assert server.process.poll() is None
        server.until_idle()
        assert "Traceback" not in server.said


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def check(response: Any, documented: set[int]) -> None:
    """501 is an answer too: a field or a route that is not there."""
    assert response.status_code not in (500, 502, 504), response.text
    assert response.status_code in documented
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["sound", "unsound"])
def test_requests(document: Any, mode: GenerationMode) -> None:
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) >= 18
    for operation in operations:
        try:
            ask(operation, mode)
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # nothing can be wrong with it


def ask(operation: Any, mode: GenerationMode) -> None:
    """Some random requests of one kind."""
    documented = {int(status) for status in operation.definition.raw["responses"]}

    @settings(
        max_examples=20, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        check(case.call(timeout=60), documented)

    one()

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay import ragged
from app.replay.ragged import Ragged

ROWS = st.lists(st.lists(st.sampled_from([0, 1, 5, 7, 2**31, 2**32 - 1]), max_size=7), max_size=9)


@pytest.mark.parametrize("padding", [0, 100])
@settings(deadline=None)
@given(rows=ROWS)
def test_sorting_within_rows_is_stable_in_either_way(padding: int, rows: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "_MOST_PADDING", padding)
        given_rows = Ragged.of(rows)
        order = given_rows.sorting_order()
    expected = np.lexsort((given_rows.values, given_rows.row_of))
    assert order.tolist() == expected.tolist()

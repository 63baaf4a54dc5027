"""What the benchmark scripts are made of; run them through scripts/build_peers, compare_peers, bench_run and so on.

Owns the programs we measure ourselves against. No part of llmkit: nothing in llmkit imports it.
"""

"""The command line of the metric.

main is the order of work; options is what can be asked for; sharding cuts corpora that are larger
than memory; tables and plots show what was measured; wikitext turns that corpus' form into prose.
Everything is computed by the metric in perplexity_sliding.py, through its public interface.
"""
